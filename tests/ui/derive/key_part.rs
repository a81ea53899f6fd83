#![allow(unused)]

use idem::KeyPart;

#[derive(KeyPart)]
struct Nothing;

#[derive(KeyPart)]
struct NothingInBraces {}

#[derive(KeyPart)]
enum NoVariants {}

#[derive(KeyPart)]
union Either {
    one: u32,
    two: i32,
}

#[derive(KeyPart)]
struct Weight(f64);

#[derive(KeyPart)]
struct Parcel {
    id: u64,
    weight: f32,
    sizes: Vec<u32>,
}

#[derive(KeyPart)]
enum Payee {
    Customer(u64),
    Merchant { rating: f64 },
    House,
}

struct Foreign;

#[derive(KeyPart)]
struct Holder(Foreign);

#[derive(KeyPart)]
struct Perhaps(Option<Foreign>);

#[derive(KeyPart)]
struct Borrowed<'a>(&'a Foreign);

#[derive(KeyPart)]
struct Generic<T>(T);

fn asks_for_a_key_part<K: KeyPart>(_: K) {}

fn a_generic_one_of_a_float() {
    asks_for_a_key_part(Generic(1.5));
}

#[derive(KeyPart)]
#[idem(crat = "::idem")]
struct Misspelt(u64);

#[derive(KeyPart)]
#[idem(crate = "::idem", crate = "::idem")]
struct Twice(u64);

#[derive(KeyPart)]
#[idem(crate = 5)]
struct ANumberForACrate(u64);

#[derive(KeyPart)]
#[idem(crate)]
struct NoCrate(u64);

#[derive(KeyPart)]
#[idem]
struct NoOptions(u64);

#[derive(KeyPart)]
#[idem()]
struct NoOptionsInParentheses(u64);

#[derive(KeyPart)]
#[idem("crate")]
struct CrateInQuotes(u64);

#[derive(KeyPart)]
#[idem = "::idem"]
struct CrateAsAValue(u64);

#[derive(KeyPart)]
#[idem(keep)]
struct AnActionForAKey(u64);

#[derive(KeyPart)]
struct OnAField {
    #[idem(skip)]
    id: u64,
}

#[derive(KeyPart)]
enum OnAVariant {
    #[idem(rename = "c")]
    Customer(u64),
}

#[derive(KeyPart)]
fn on_a_function() {}

fn main() {}
