#![allow(unused)]

use idem::ErrorPolicy;

#[derive(ErrorPolicy)]
union Either {
    one: u32,
    two: i32,
}

#[derive(ErrorPolicy)]
enum TwoPolicies {
    #[idem(keep, release)]
    Declined,
}

#[derive(ErrorPolicy)]
enum TwoAttributes {
    #[idem(release)]
    #[idem(retry(max = 3))]
    Declined,
}

#[derive(ErrorPolicy)]
enum UnknownWord {
    #[idem(kepp)]
    Declined,
}

#[derive(ErrorPolicy)]
enum WordOfAnotherLibrary {
    #[idem(drop)]
    Declined,
}

#[derive(ErrorPolicy)]
enum InQuotes {
    #[idem("release")]
    Declined,
}

#[derive(ErrorPolicy)]
enum AsAValue {
    #[idem = "release"]
    Declined,
}

#[derive(ErrorPolicy)]
enum NoPolicy {
    #[idem()]
    Declined,
}

#[derive(ErrorPolicy)]
enum NotEvenParentheses {
    #[idem]
    Declined,
}

#[derive(ErrorPolicy)]
enum NoComma {
    #[idem(release inner)]
    Declined,
}

#[derive(ErrorPolicy)]
enum ASecondOne {
    #[idem(release, ttl = "5m")]
    Declined,
}

#[derive(ErrorPolicy)]
enum NoMax {
    #[idem(retry)]
    Timeout,
}

#[derive(ErrorPolicy)]
enum NoUnit {
    #[idem(retry(max = 3, backoff = 100))]
    Timeout,
}

#[derive(ErrorPolicy)]
enum MaxOfNone {
    #[idem(retry(max = 0))]
    Timeout,
}

#[derive(ErrorPolicy)]
enum RetryAfterRetry {
    #[idem(retry(max = 3, then = inner))]
    Timeout,
}

#[derive(ErrorPolicy)]
enum InnerOfNothing {
    #[idem(inner)]
    Timeout,
}

#[derive(ErrorPolicy)]
enum InnerOfTwo {
    #[idem(inner)]
    Stock(StockError, u64),
}

#[derive(ErrorPolicy)]
#[idem(inner)]
struct InnerOfTwoFields {
    stock: StockError,
    id: u64,
}

#[derive(ErrorPolicy)]
#[idem(inner)]
enum InnerForAll {
    Stock(StockError),
    Timeout,
}

#[derive(ErrorPolicy)]
struct StockError;

#[derive(ErrorPolicy)]
enum OnAField {
    Declined {
        #[idem(keep)]
        code: u16,
    },
}

#[derive(ErrorPolicy)]
struct OnAFieldOfAStruct(#[idem(inner)] StockError);

#[derive(ErrorPolicy)]
enum CrateOnAVariant {
    #[idem(crate = "::idem", release)]
    Declined,
}

#[derive(ErrorPolicy)]
#[idem(crate = "::idem", crate = "::idem")]
enum CrateTwice {
    Declined,
}

#[derive(ErrorPolicy)]
#[idem(crate = 5)]
enum ANumberForACrate {
    Declined,
}

#[derive(ErrorPolicy)]
#[idem(crate)]
enum NoCrate {
    Declined,
}

#[derive(ErrorPolicy)]
enum Many {
    #[idem(kepp)]
    One,
    #[idem(inner)]
    Two,
    #[idem(retry(max = 0, backoff = "soon"))]
    Three,
}

#[derive(Debug, serde::Serialize, serde::Deserialize, ErrorPolicy)]
enum KeptAndSkipped {
    #[idem(keep)]
    #[serde(skip)]
    Idempotency(u8),
    Other,
}

#[derive(ErrorPolicy)]
enum MisspeltAboutMessages {
    #[idem(redelivr = "30s")]
    Redeliver,
    #[idem(deadletter)]
    DeadLetter,
    #[idem(iner)]
    Inner(StockError),
    #[idem("dead_letter")]
    InQuotes,
    #[idem(redeliver("30s"))]
    InParentheses,
}

#[derive(ErrorPolicy)]
#[idem(dispos)]
enum MisspeltAboveTheType {
    Declined,
}

#[derive(ErrorPolicy)]
#[idem(crat = "::idem")]
enum MisspeltCrate {
    Declined,
}

#[derive(ErrorPolicy)]
enum Values {
    #[idem(keep = "1h")]
    Declined,
    #[idem(retry = 3)]
    Timeout,
    #[idem(release = true)]
    Down,
    #[idem(inner = "policy")]
    Stock(StockError),
    #[idem(inner(policy))]
    Other(StockError),
    #[idem("retry(max = 3)")]
    Busy,
}

fn main() {}
