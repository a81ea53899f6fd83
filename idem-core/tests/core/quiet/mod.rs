//! Tests that assert sizes. They run alone on the machine.

mod memory;
