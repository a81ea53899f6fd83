//! The real program on real servers: what it prints, what it changes, and each exit code.

#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

mod audit;
mod codes;
mod doctor;
mod erase;
mod in_ci;
mod locks;
mod many;
mod night;
mod restarted;
mod schema;
mod settle;
mod steps;
mod support;
mod unreadable;
