//! Tests of the steps over real databases, with statements and settings that only this crate can
//! change.

mod clock_jump_tests;
mod statement_mutants;
mod wake_tests;
