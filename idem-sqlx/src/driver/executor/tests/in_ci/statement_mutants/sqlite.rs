//! Mistakes in the statements of SQLite.

use super::{GUARDS, Mutant, mutant};

pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "a token without its grace",
        "+ length - fade, CAST",
        "+ length, CAST",
        "issue::is_issued_for_its_ttl_then_expired_for_its_grace_then_nothing",
    ),
    mutant(
        "a claim writes over a row",
        "ON CONFLICT (operation, key) DO NOTHING",
        "ON CONFLICT (operation, key) DO UPDATE SET state = excluded.state, attempt = \
         excluded.attempt, owner = excluded.owner, origin = excluded.origin, leased_at = \
         excluded.leased_at, lease_until = excluded.lease_until, revision = excluded.revision",
        GUARDS,
    ),
    mutant(
        "a key is that of each operation",
        "WHERE operation = ?1 AND key = ?2",
        "WHERE key = ?2",
        "claim::keys_of_two_operations_do_not_collide",
    ),
    mutant(
        "anybody commits",
        "owner = ?18 AND expires_at",
        "?18 IS NOT NULL AND expires_at",
        "commit::by_a_stranger_is_lost",
    ),
    mutant(
        "a commit after the hold",
        "AND owner = ?18 AND expires_at > CAST(round((julianday('now') - 2440587.5) * 86400000.0) \
         AS INTEGER)",
        "AND owner = ?18",
        "time::a_late_owner_finds_nothing_after_the_hold",
    ),
    mutant(
        "a write over what has changed since",
        "revision = ?18 AND (",
        "?18 IS NOT NULL AND (",
        GUARDS,
    ),
    mutant(
        "a write over a lease that lives",
        "(NOT ?19 OR lease_until <= ",
        "(NOT ?19 OR 0 <= ",
        GUARDS,
    ),
    mutant(
        "a removal of what has changed since",
        "?2 AND revision = ?3",
        "?2 AND ?3 IS NOT NULL",
        GUARDS,
    ),
    mutant(
        "anybody renews",
        "AND r.owner = given.owner AND expires_at",
        "AND expires_at",
        "renew::by_a_stranger_is_lost",
    ),
    mutant(
        "a renewal after the hold",
        "AND r.owner = given.owner AND expires_at > CAST(round((julianday('now') - 2440587.5) * \
         86400000.0) AS INTEGER)",
        "AND r.owner = given.owner",
        "time::a_late_owner_finds_nothing_after_the_hold",
    ),
    mutant(
        "a renewal that leaves the lease",
        "lease_until = CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + \
         lease_until - leased_at",
        "lease_until = lease_until",
        "renew::starts_the_lease_anew",
    ),
    mutant(
        "a renewal that leaves the hold",
        "expires_at = CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + \
         max(given.hold, coalesce(expires_at - leased_at, 0))",
        "expires_at = coalesce(expires_at, given.hold)",
        "renew::sets_the_expiry_to_the_hold",
    ),
    mutant(
        "a renewal that shortens the hold",
        "max(given.hold, coalesce(expires_at - leased_at, 0))",
        "given.hold",
        "renew::with_a_shorter_hold_does_not_shorten_the_expiry",
    ),
    mutant(
        "a renewal that does not say when",
        "SET leased_at = CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER), \
         lease_until",
        "SET lease_until",
        "renew::starts_the_lease_anew",
    ),
    mutant(
        "a renewal that leaves the revision",
        "leased_at, 0)), revision = ?",
        "leased_at, 0)), revision = coalesce(revision, ?)",
        GUARDS,
    ),
    mutant(
        "an expiry that is set where it should stay",
        "coalesce(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + ?9, \
         expires_at)",
        "coalesce(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + ?9, \
         CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + 1)",
        "release::to_abandoned_keeps_attempt_fingerprint_and_expiry",
    ),
    mutant(
        "an expiry that stays where it should be set",
        "coalesce(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + ?9, \
         expires_at)",
        "coalesce(expires_at, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) \
         + ?9)",
        "commit::sets_ttl_and_remember_in_place_of_the_hold",
    ),
    mutant(
        "no outcome",
        "outcome = ?14",
        "outcome = coalesce(outcome, x'6e756c6c')",
        "outcome::of_every_byte_is_kept",
    ),
    mutant(
        "another codec",
        "codec = ?13",
        "codec = coalesce(codec, 'j')",
        "outcome::keeps_the_name_of_its_codec",
    ),
    mutant(
        "an error that is a value",
        "is_error = ?12",
        "is_error = is_error",
        "outcome::that_is_an_error_stays_one",
    ),
    mutant(
        "the fingerprint of the first",
        "fingerprint = ?11",
        "fingerprint = fingerprint",
        "fingerprint::a_take_over_brings_its_own",
    ),
    mutant(
        "the attempt of the first",
        "SET state = ?3, attempt = ?4",
        "SET state = ?3, attempt = attempt",
        "takeover::is_repeated_with_a_growing_attempt",
    ),
    mutant(
        "the owner of the first",
        "owner = ?5, origin",
        "owner = owner, origin",
        "takeover::the_new_owner_commits",
    ),
    mutant(
        "the origin of the first",
        "origin = ?6,",
        "origin = coalesce(origin, 'new'),",
        "takeover::ones_own_sent_again_is_recognised",
    ),
    mutant(
        "questions that are not counted",
        "questions = ?15",
        "questions = questions",
        "question::is_not_counted_after_a_renewal",
    ),
    mutant(
        "what was taken over is forgotten",
        "took_over = ?16",
        "took_over = NULL",
        "undo::restores_the_fingerprint",
    ),
    mutant(
        "the state stays",
        "SET state = ?3,",
        "SET state = state,",
        "outcome::of_every_byte_is_kept",
    ),
    mutant(
        "an outcome that is kept for as long as it is remembered",
        "valid_until = coalesce(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS \
         INTEGER) + ?9, expires_at) - ?10",
        "valid_until = NULL",
        "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing",
    ),
    mutant(
        "what is left is what there was",
        "expires_at - CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER), \
         expires_at - valid_until",
        "expires_at - coalesce(leased_at, CAST(round((julianday('now') - 2440587.5) * 86400000.0) \
         AS INTEGER)), expires_at - valid_until",
        "time::a_claim_finds_a_lease_alive_until_it_has_run_out",
    ),
    mutant(
        "a lease as long as the hold",
        "lease_until - leased_at, expires_at - leased_at",
        "expires_at - leased_at, expires_at - leased_at",
        "claim::in_flight_is_in_flight_with_what_is_left_of_the_lease",
    ),
    mutant(
        "a sweep of all",
        ") AND expires_at <= CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)",
        ")",
        "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing",
    ),
    mutant(
        "a sweep of outcomes that forgets that there was one",
        "SET state = 'done', valid_until",
        "SET state = 'released', valid_until",
        "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing",
    ),
];
