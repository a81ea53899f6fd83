#![allow(unused)]

use idem::idempotent;

#[idempotent(key = id)]
struct OnAStruct {
    id: u64,
}

#[idempotent(key = id)]
pub enum OnAnEnum {
    Variant,
}

#[idempotent(key = id)]
union OnAUnion {
    id: u64,
}

struct Service;

#[idempotent(key = id)]
impl Service {
    fn method(&self, id: u64) {}
}

#[idempotent(key = id)]
unsafe impl Send for OnAStruct {}

#[idempotent(key = id)]
pub trait OnATrait {
    fn method(&self, id: u64);
}

#[idempotent(key = id)]
mod on_a_module {}

#[idempotent(key = id)]
const ON_A_CONSTANT: u64 = 1;

#[idempotent(key = id)]
static ON_A_STATIC: u64 = 1;

#[idempotent(key = id)]
type OnAnAlias = u64;

#[idempotent(key = id)]
use std::time::Duration as OnAnImport;

#[idempotent(key = id)]
macro_rules! on_a_macro {
    () => {};
}

#[idempotent(key = id)]
extern crate std as on_a_crate;

unsafe extern "C" {
    #[idempotent(key = id)]
    fn on_a_foreign_function(id: u64) -> u64;
}

#[idempotent(key = id)]
unsafe extern "C" {
    fn on_foreign_functions(id: u64) -> u64;
}

#[idempotent(key = id)]
thread_local! {
    static ON_A_MACRO_CALL: u64 = 1;
}

// All options are checked even there.
#[idempotent(key = id, tll = "5m")]
struct Both;

fn main() {
    drop(OnAStruct { id: ON_A_CONSTANT });
    Service.method(ON_A_STATIC);
    drop(OnAnImport::from_secs(1));
}
