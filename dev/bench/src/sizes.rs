//! How much larger than its body the future of a guarded call is.

use std::hint::black_box;
use std::mem::size_of_val;

use idem::{Error, Idempotency, idempotent};
use tokio::task::yield_now;

use crate::report::{Figure, Group, Unit};

/// The most that may come on top.
const MOST: f64 = 1024.0;

pub(crate) fn group() -> Group {
    let mut figures = sizes::<1024>("1 KiB");
    figures.extend(sizes::<{ 16 * 1024 }>("16 KiB"));
    Group {
        title: "Size of the future, over the body's own".to_owned(),
        figures,
    }
}

#[allow(clippy::cast_precision_loss)]
fn sizes<const N: usize>(name: &str) -> Vec<Figure> {
    let bare = size_of_val(&body::<N>());
    // Not run, so any runtime will do.
    let by_hand = Idempotency::disabled()
        .operation("bench")
        .key("key")
        .run(body::<N>);
    [
        ("#[idempotent]", size_of_val(&annotated::<N>("key"))),
        ("by hand", size_of_val(&by_hand)),
    ]
    .map(|(form, size)| {
        let figure = Figure::new(
            format!("{form}, a body of {name}"),
            Unit::Bytes,
            vec![size as f64 - bare as f64],
        );
        figure.at_most(MOST).remark(format!("{size}; body {bare}"))
    })
    .into()
}

/// A body that holds so many bytes while it waits.
async fn body<const N: usize>() -> Result<u8, Error> {
    let state = black_box([1; N]);
    yield_now().await;
    Ok(black_box(&state)[0])
}

/// The same bytes under the attribute, in the body itself.
#[idempotent(name = "bench", key = key)]
async fn annotated<const N: usize>(key: &str) -> Result<u8, Error> {
    let state = black_box([1; N]);
    yield_now().await;
    Ok(black_box(&state)[0])
}
