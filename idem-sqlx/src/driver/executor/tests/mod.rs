//! Tests of the steps over real databases, with statements and settings that only this crate can
//! change.

mod clock_jump_tests;
mod wake_tests;

/// Only `cargo xtask ci` runs these.
mod in_ci {
    mod statement_mutants;
}
