//! What tests measure: they run alone on the machine.

mod memory;
