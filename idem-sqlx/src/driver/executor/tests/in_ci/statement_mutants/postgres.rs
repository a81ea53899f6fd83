//! Mistakes in the statements of PostgreSQL.

use super::{GUARDS, Mutant, mutant};

pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "a claim writes over a row",
        "DO NOTHING RETURNING state",
        "DO UPDATE SET state = excluded.state, attempt = excluded.attempt, owner = excluded.owner, \
         origin = excluded.origin, leased_at = excluded.leased_at, lease_until = \
         excluded.lease_until, revision = excluded.revision RETURNING state",
        GUARDS,
    ),
    mutant(
        "a token without its grace",
        "(length - fade)",
        "length",
        "issue::is_issued_for_its_ttl_then_expired_for_its_grace_then_nothing",
    ),
    // Without `SET waited = true`, nobody is told of an end; a waiter looks again after a second,
    // so nothing but time is lost.
    mutant(
        "a renewal that leaves the revision",
        "revision = $5 FROM",
        "revision = coalesce(r.revision, $5) FROM",
        GUARDS,
    ),
    mutant(
        "a renewal that waits for a locked row",
        "FOR NO KEY UPDATE OF r SKIP LOCKED",
        "FOR NO KEY UPDATE OF r",
        GUARDS,
    ),
    mutant(
        "the origin of the first",
        "origin = $6,",
        "origin = coalesce(origin, $6, 'nothing'),",
        "takeover::ones_own_sent_again_is_recognised",
    ),
    mutant(
        "an outcome that is kept for as long as it is remembered",
        "- $10::bigint * interval '1 millisecond', coalesce",
        "- nullif($10::bigint, $10::bigint) * interval '1 millisecond', coalesce",
        "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing",
    ),
    mutant(
        "the state stays",
        "SET state = $3,",
        "SET state = coalesce(state, $3),",
        "outcome::of_every_byte_is_kept",
    ),
    mutant(
        "a key is that of each operation",
        "WHERE operation = convert_from($1, 'UTF8') AND key",
        "WHERE $1::bytea IS NOT NULL AND key",
        "claim::keys_of_two_operations_do_not_collide",
    ),
    mutant(
        "anybody commits",
        "owner = $18 AND state",
        "$18::bytea IS NOT NULL AND state",
        "commit::by_a_stranger_is_lost",
    ),
    mutant(
        "a commit after the hold",
        " AND expires_at - statement_timestamp() > interval '0' RETURNING CASE",
        " RETURNING CASE",
        "time::a_late_owner_finds_nothing_after_the_hold",
    ),
    mutant(
        "a write over what has changed since",
        "revision = $18 AND (",
        "$18::bigint IS NOT NULL AND (",
        GUARDS,
    ),
    mutant(
        "a write over a lease that lives",
        "(NOT $19 OR lease_until <= statement_timestamp())",
        "(NOT $19 OR true)",
        GUARDS,
    ),
    mutant(
        "a removal of what has changed since",
        "'UTF8') AND revision = $3",
        "'UTF8') AND $3::bigint IS NOT NULL",
        GUARDS,
    ),
    mutant(
        "anybody renews",
        "AND r.owner = renewed.owner",
        "AND renewed.owner IS NOT NULL",
        "renew::by_a_stranger_is_lost",
    ),
    mutant(
        "a renewal after the hold",
        " AND r.expires_at - statement_timestamp() > interval '0' FOR NO KEY",
        " FOR NO KEY",
        "time::a_late_owner_finds_nothing_after_the_hold",
    ),
    mutant(
        "a renewal that leaves the lease",
        "lease_until = statement_timestamp() + (r.lease_until - r.leased_at)",
        "lease_until = r.lease_until",
        "renew::starts_the_lease_anew",
    ),
    mutant(
        "a renewal that leaves the hold",
        "expires_at = statement_timestamp() + free.hold * interval '1 millisecond'",
        "expires_at = r.expires_at",
        "renew::sets_the_expiry_to_the_hold",
    ),
    mutant(
        "a renewal that shortens the hold",
        "greatest(renewed.hold, round(extract(epoch FROM r.expires_at - r.leased_at) * \
         1000)::bigint) AS hold",
        "renewed.hold",
        "renew::with_a_shorter_hold_does_not_shorten_the_expiry",
    ),
    mutant(
        "a renewal that does not say when",
        "SET leased_at = statement_timestamp(), lease_until",
        "SET lease_until",
        "renew::starts_the_lease_anew",
    ),
    mutant(
        "an expiry that is set where it should stay",
        "coalesce(statement_timestamp() + $9::bigint * interval '1 millisecond', expires_at)",
        "coalesce(statement_timestamp() + $9::bigint * interval '1 millisecond', \
         statement_timestamp() + interval '1 millisecond')",
        "release::to_abandoned_keeps_attempt_fingerprint_and_expiry",
    ),
    mutant(
        "an expiry that stays where it should be set",
        "coalesce(statement_timestamp() + $9::bigint * interval '1 millisecond', expires_at)",
        "coalesce(expires_at, statement_timestamp() + $9::bigint * interval '1 millisecond')",
        "commit::sets_ttl_and_remember_in_place_of_the_hold",
    ),
    mutant(
        "no outcome",
        "outcome = $14",
        "outcome = coalesce(outcome, nullif($14, $14), '\\x6e756c6c')",
        "outcome::of_every_byte_is_kept",
    ),
    mutant(
        "another codec",
        "codec = $13",
        "codec = coalesce(codec, nullif($13, $13), 'j')",
        "outcome::keeps_the_name_of_its_codec",
    ),
    mutant(
        "an error that is a value",
        "is_error = $12",
        "is_error = is_error AND $12",
        "outcome::that_is_an_error_stays_one",
    ),
    mutant(
        "the fingerprint of the first",
        "fingerprint = $11",
        "fingerprint = coalesce(fingerprint, nullif($11, $11))",
        "fingerprint::a_take_over_brings_its_own",
    ),
    mutant(
        "the attempt of the first",
        "state = $3, attempt = $4",
        "state = $3, attempt = coalesce(attempt, $4)",
        "takeover::is_repeated_with_a_growing_attempt",
    ),
    mutant(
        "the owner of the first",
        "owner = $5, origin",
        "owner = coalesce(owner, $5), origin",
        "takeover::the_new_owner_commits",
    ),
    mutant(
        "questions that are not counted",
        "questions = $15",
        "questions = coalesce(questions, $15)",
        "question::is_not_counted_after_a_renewal",
    ),
    mutant(
        "what was taken over is forgotten",
        "took_over = $16",
        "took_over = nullif($16, $16)",
        "undo::restores_the_fingerprint",
    ),
    mutant(
        "what is left is what there was",
        "ceil(extract(epoch FROM expires_at - statement_timestamp()) * 1000)",
        "ceil(extract(epoch FROM expires_at - coalesce(leased_at, statement_timestamp())) * 1000)",
        "time::a_claim_finds_a_lease_alive_until_it_has_run_out",
    ),
    mutant(
        "a lease as long as the hold",
        "extract(epoch FROM lease_until - leased_at)",
        "extract(epoch FROM expires_at - leased_at)",
        "claim::in_flight_is_in_flight_with_what_is_left_of_the_lease",
    ),
    mutant(
        "a sweep of all",
        "expires_at <= statement_timestamp()",
        "expires_at IS NOT NULL",
        "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing",
    ),
    mutant(
        "a sweep of outcomes that forgets that there was one",
        "SET state = 'done', valid_until",
        "SET state = 'released', valid_until",
        "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing",
    ),
];
