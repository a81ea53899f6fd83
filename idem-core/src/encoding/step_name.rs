//! The name of a step, and the key of its record.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};

use crate::encoding::key::{DIGEST_LEN, KeyPart, KeyWriter, MAX_KEY_LEN, digest_after};

/// The name of a [`step`](crate::step): a text, or a tuple of a text and up to seven key parts.
///
/// The text has the characters of an operation's name, without `/`. The parts tell the runs of a
/// loop apart: each is a [`KeyPart`].
///
/// | the step | its record, if the call is `orders.place` with the key `o-1` |
/// | --- | --- |
/// | `step("charge", ..)` | operation `idem.step/orders.place/charge`, key `o-1:<run>` |
/// | `step(("reserve", "sku-7"), ..)` | operation `idem.step/orders.place/reserve`, key `o-1:<run>:sku-7` |
///
/// Implemented for `&str`, `String`, `Cow<str>`, tuples, and references to them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the name of a step",
    label = "neither a text, nor a tuple that begins with one",
    note = "in a loop, put what differs into a tuple: `(\"reserve\", &item.sku)`; the parts after the text are key parts"
)]
pub trait StepName: sealed::Sealed {
    /// Returns the text.
    #[doc(hidden)]
    fn text(&self) -> &str;

    /// Writes the parts after the text.
    #[doc(hidden)]
    fn write_parts(&self, key: &mut KeyWriter<'_>) {
        let _ = key;
    }
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! texts {
    ($($type:ty),* $(,)?) => {$(
        impl sealed::Sealed for $type {}

        impl StepName for $type {
            fn text(&self) -> &str {
                self
            }
        }
    )*};
}

texts!(str, String, Cow<'_, str>);

impl<N: StepName + ?Sized> sealed::Sealed for &N {}

impl<N: StepName + ?Sized> StepName for &N {
    fn text(&self) -> &str {
        (**self).text()
    }

    fn write_parts(&self, key: &mut KeyWriter<'_>) {
        (**self).write_parts(key);
    }
}

macro_rules! tuples {
    ($(($($part:ident)*))*) => {$(
        impl<S: AsRef<str>, $($part: KeyPart),*> sealed::Sealed for (S, $($part,)*) {}

        impl<S: AsRef<str>, $($part: KeyPart),*> StepName for (S, $($part,)*) {
            fn text(&self) -> &str {
                self.0.as_ref()
            }

            #[allow(non_snake_case, unused_variables)]
            fn write_parts(&self, key: &mut KeyWriter<'_>) {
                let (_, $($part,)*) = self;
                $(key.part($part);)*
            }
        }
    )*};
}

tuples! {
    ()
    (A)
    (A B)
    (A B C)
    (A B C D)
    (A B C D E)
    (A B C D E F)
    (A B C D E F G)
}

/// How much of a step's key the run and a digest of the parts take, with what separates them.
const RUN_AND_DIGEST: usize = 1 + 22 + 1 + DIGEST_LEN;
/// The longest key of a call that is whole in the keys of its steps.
pub(crate) const MAX_KEY_IN_STEPS: usize = MAX_KEY_LEN - RUN_AND_DIGEST;

/// Writes the beginning of the keys of all steps of one run: the encoded key of their call, or its
/// digest where it is long, and the run.
///
/// The run is unique, so nothing else has to tell the steps of two calls apart. The key is not put
/// in parentheses, so that the steps of `(shop, order)` are found by the first part of their keys
/// as well.
pub(crate) fn write_run_after(text: &mut String, call: &str, run: impl Display) {
    let start = text.len();
    text.push_str(call);
    if call.len() > MAX_KEY_IN_STEPS {
        digest_after(text, start);
    }
    // Writing to a `String` cannot fail.
    let _ = write!(text, ":{run}");
}

/// Writes the further parts of a name behind the run, as a digest if the key that begins at `start`
/// becomes too long. Says whether it is whole: not if a part of it is missing.
pub(crate) fn write_parts_after<N: StepName + ?Sized>(
    text: &mut String,
    start: usize,
    name: &N,
) -> bool {
    let parts = text.len();
    let mut missing = false;
    name.write_parts(&mut KeyWriter::behind(text, &mut missing));
    if text.len() - start > MAX_KEY_LEN {
        digest_after(text, parts + 1);
    }
    !missing
}
