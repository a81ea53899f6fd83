//! Mistakes in the statements of MySQL.

use super::{GUARDS, Mutant, mutant};

pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "a key is that of each operation",
        " operation = CONVERT(? USING utf8mb4) COLLATE utf8mb4_bin AND `key` =",
        " ? IS NOT NULL AND `key` =",
        "claim::keys_of_two_operations_do_not_collide",
    ),
    mutant(
        "anybody commits",
        "owner = ? AND state",
        "? IS NOT NULL AND state",
        "commit::by_a_stranger_is_lost",
    ),
    mutant(
        "a commit after the hold",
        "owner = ? AND state = 'in_flight' AND expires_at > UTC_TIMESTAMP(6)",
        "owner = ? AND state = 'in_flight'",
        "time::a_late_owner_finds_nothing_after_the_hold",
    ),
    mutant(
        "a write over what has changed since",
        "revision = ? AND (NOT",
        "? IS NOT NULL AND (NOT",
        GUARDS,
    ),
    mutant(
        "a write over a lease that lives",
        "(NOT ? OR lease_until <= UTC_TIMESTAMP(6))",
        "(NOT ? OR true)",
        GUARDS,
    ),
    mutant(
        "a removal of what has changed since",
        "` WHERE operation = CONVERT(? USING utf8mb4) COLLATE utf8mb4_bin AND `key` = CONVERT(? \
         USING utf8mb4) COLLATE utf8mb4_bin AND revision = ?",
        "` WHERE operation = CONVERT(? USING utf8mb4) COLLATE utf8mb4_bin AND `key` = CONVERT(? \
         USING utf8mb4) COLLATE utf8mb4_bin AND ? IS NOT NULL",
        GUARDS,
    ),
    mutant(
        "a renewal that leaves the lease",
        "r.lease_until = UTC_TIMESTAMP(6) + INTERVAL free.lease MICROSECOND",
        "r.lease_until = r.lease_until",
        "renew::starts_the_lease_anew",
    ),
    mutant(
        "a renewal that does not say when",
        "SET r.leased_at = UTC_TIMESTAMP(6), r.lease_until",
        "SET r.lease_until",
        "renew::starts_the_lease_anew",
    ),
    mutant(
        "a renewal that leaves the hold",
        "r.expires_at = UTC_TIMESTAMP(6) + INTERVAL 1000 * free.hold MICROSECOND",
        "r.expires_at = r.expires_at",
        "renew::sets_the_expiry_to_the_hold",
    ),
    mutant(
        "a renewal that shortens the hold",
        "END, COALESCE(TIMESTAMPDIFF(MICROSECOND, leased_at, expires_at) DIV 1000, 0)) AS hold",
        "END, 0) AS hold",
        "renew::with_a_shorter_hold_does_not_shorten_the_expiry",
    ),
    mutant(
        "a renewal after the hold",
        "(PRIMARY) WHERE state = 'in_flight' AND expires_at > UTC_TIMESTAMP(6)",
        "(PRIMARY) WHERE state = 'in_flight'",
        "time::a_late_owner_finds_nothing_after_the_hold",
    ),
    mutant(
        "a renewal that waits for a locked row",
        "FOR UPDATE SKIP LOCKED) AS free",
        "FOR UPDATE) AS free",
        GUARDS,
    ),
    mutant(
        "a renewal of some that is taken for all",
        "` WHERE revision = ",
        "` WHERE revision <> ",
        GUARDS,
    ),
    mutant(
        "an expiry that is set where it should stay",
        "expires_at = COALESCE(UTC_TIMESTAMP(6) + INTERVAL ? * 1000 MICROSECOND, expires_at)",
        "expires_at = COALESCE(UTC_TIMESTAMP(6) + INTERVAL ? * 1000 MICROSECOND, UTC_TIMESTAMP(6) \
         + INTERVAL 1000 MICROSECOND)",
        "release::to_abandoned_keeps_attempt_fingerprint_and_expiry",
    ),
    mutant(
        "an expiry that stays where it should be set",
        "expires_at = COALESCE(GREATEST(UTC_TIMESTAMP(6), leased_at) + INTERVAL ? * 1000 \
         MICROSECOND, expires_at)",
        "expires_at = COALESCE(expires_at, UTC_TIMESTAMP(6) + INTERVAL ? * 1000 MICROSECOND)",
        "commit::sets_ttl_and_remember_in_place_of_the_hold",
    ),
    mutant(
        "an error that is a value",
        "is_error = ?",
        "is_error = is_error AND ?",
        "outcome::that_is_an_error_stays_one",
    ),
    mutant(
        "the state stays",
        "SET state = ?,",
        "SET state = COALESCE(state, ?),",
        "outcome::of_every_byte_is_kept",
    ),
    mutant(
        "no outcome",
        "outcome = ?",
        "outcome = IF(? IS NULL, NULL, x'6e756c6c')",
        "outcome::of_every_byte_is_kept",
    ),
    mutant(
        "another codec",
        "codec = ?",
        "codec = IF(? IS NULL, NULL, 'j')",
        "outcome::keeps_the_name_of_its_codec",
    ),
    mutant(
        "the fingerprint of the first",
        "fingerprint = ?",
        "fingerprint = IF(? IS NULL, fingerprint, fingerprint)",
        "fingerprint::a_take_over_brings_its_own",
    ),
    mutant(
        "the origin of the first",
        "origin = ?,",
        "origin = COALESCE(origin, ?),",
        "takeover::ones_own_sent_again_is_recognised",
    ),
    mutant(
        "questions that are not counted",
        "questions = ?",
        "questions = COALESCE(questions, ?)",
        "question::is_not_counted_after_a_renewal",
    ),
    mutant(
        "what was taken over is forgotten",
        "took_over = ?",
        "took_over = IF(? IS NULL, NULL, NULL)",
        "undo::restores_the_fingerprint",
    ),
    mutant(
        "an outcome that is kept for as long as it is remembered",
        "expires_at) - INTERVAL ? * 1000 MICROSECOND, expires_at",
        "expires_at) - INTERVAL IF(? IS NULL, NULL, NULL) * 1000 MICROSECOND, expires_at",
        "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing",
    ),
    mutant(
        "a renewal that leaves the revision",
        "r.sweep_at) END, r.revision = ",
        "r.sweep_at) END, r.revision = r.revision + 0 * ",
        GUARDS,
    ),
    mutant(
        "the attempt of the first",
        "SET state = ?, attempt = ?",
        "SET state = ?, attempt = COALESCE(attempt, ?)",
        "takeover::is_repeated_with_a_growing_attempt",
    ),
    mutant(
        "the owner of the first",
        "owner = ?, origin",
        "owner = COALESCE(owner, ?), origin",
        "takeover::the_new_owner_commits",
    ),
    mutant(
        "what is left is what there was",
        "(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at) + 999) DIV 1000",
        "(TIMESTAMPDIFF(MICROSECOND, COALESCE(leased_at, UTC_TIMESTAMP(6)), expires_at) + 999) DIV \
         1000",
        "time::a_claim_finds_a_lease_alive_until_it_has_run_out",
    ),
    mutant(
        "a lease as long as the hold",
        "TIMESTAMPDIFF(MICROSECOND, leased_at, lease_until) DIV 1000",
        "TIMESTAMPDIFF(MICROSECOND, leased_at, expires_at) DIV 1000",
        "claim::in_flight_is_in_flight_with_what_is_left_of_the_lease",
    ),
    mutant(
        "a sweep of all",
        "due.`key` WHERE expires_at <= UTC_TIMESTAMP(6)",
        "due.`key`",
        "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing",
    ),
    mutant(
        "a sweep of outcomes that forgets that there was one",
        "SET state = 'done', valid_until",
        "SET state = 'released', valid_until",
        "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing",
    ),
];
