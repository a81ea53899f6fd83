//! Tests of the consumer's loop, with a broker in memory.

mod events;
mod fake;
mod inbox;
mod offsets;
mod panics;
mod time_limits;
