#![allow(unused)]

use idem::ErrorPolicy;
use serde::{Deserialize, Serialize};

struct Silent;

#[derive(ErrorPolicy)]
enum InnerWithoutAPolicy {
    #[idem(inner)]
    Stock(Silent),
}

#[derive(ErrorPolicy)]
enum InnerInABox {
    #[idem(inner)]
    Stock(Box<Silent>),
}

#[derive(ErrorPolicy)]
#[idem(inner)]
struct InnerForeign(std::io::Error);

#[derive(ErrorPolicy)]
enum NotStorable {
    #[idem(keep)]
    Declined,
    #[idem(keep)]
    Empty,
}

#[derive(ErrorPolicy)]
#[idem(retry(max = 3, then = keep))]
struct NotStorableAfterAll;

#[derive(Serialize, ErrorPolicy)]
#[idem(keep)]
struct OnlyWritten;

#[derive(Serialize, Deserialize, ErrorPolicy)]
enum Numbers {
    #[idem(keep(ttl = 5 * 60))]
    Declined,
    #[idem(retry(max = "3".len()))]
    Timeout,
    #[idem(retry(max = 3, backoff = std::time::Instant::now()))]
    Down,
}

#[derive(ErrorPolicy)]
enum Generic<E> {
    #[idem(inner)]
    Inner(E),
}

fn asks_for_a_policy<E: ErrorPolicy>(_: E) {}

fn a_generic_one_of_a_type_without() {
    asks_for_a_policy(Generic::Inner(Silent));
}

fn main() {}
