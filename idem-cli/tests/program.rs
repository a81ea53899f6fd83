//! The real program on real servers: what it prints, what it changes, and each exit code.

#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

#[path = "program/support.rs"]
mod support;

#[path = "program/audit.rs"]
mod audit;
#[path = "program/codes.rs"]
mod codes;
#[path = "program/doctor.rs"]
mod doctor;
#[path = "program/erase.rs"]
mod erase;
#[path = "program/locks.rs"]
mod locks;
#[path = "program/many.rs"]
mod many;
#[path = "program/million.rs"]
mod million;
#[path = "program/night.rs"]
mod night;
#[path = "program/schema.rs"]
mod schema;
#[path = "program/settle.rs"]
mod settle;
#[path = "program/steps.rs"]
mod steps;
#[path = "program/unreadable.rs"]
mod unreadable;
