//! The name of a step, and the id of its record.

use std::borrow::Cow;

use crate::adapter::engine::{digest_after, write_run_after};
use crate::record::{Owner, RecordId, STEP_PREFIX, is_valid_operation};
use crate::{KeyPart, KeyWriter, MAX_KEY_LEN};

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

/// Makes the id of a step of this call, in one run of its key. The error says what to write instead.
pub(super) fn id_of_step<N: StepName + ?Sized>(
    call: &RecordId,
    run: Owner,
    name: &N,
) -> Result<RecordId, &'static str> {
    let mut text = String::with_capacity(call.as_str().len() + 64);
    text.push_str(STEP_PREFIX);
    text.push_str(call.name());
    text.push('/');
    text.push_str(name.text());
    let operation_len = text.len();
    if name.text().is_empty() {
        return Err("the name of a step is empty; write a text such as `charge`");
    }
    // A step of a step has a `/`.
    if name.text().contains('/') || !is_valid_operation(&text[STEP_PREFIX.len()..]) {
        return Err(
            "the name of a step is not valid: it has letters, digits and `_ - . # @ +`, and at \
             most 128 of them together with the operation's name; put anything else into the \
             further parts, as in `(\"reserve\", &item.sku)`",
        );
    }
    text.push(':');
    write_run_after(&mut text, call.key(), run);
    if !write_parts_after(&mut text, operation_len + 1, name) {
        return Err(
            "a part of the name of a step is missing or empty, so that two steps could not be \
             told apart; each part after the text needs a value",
        );
    }
    Ok(RecordId::of_text(&text, operation_len))
}

/// Writes the further parts of a name behind the run, as a digest if the key that begins at `start`
/// becomes too long. Says whether it is whole: not if a part of it is missing.
fn write_parts_after<N: StepName + ?Sized>(text: &mut String, start: usize, name: &N) -> bool {
    let parts = text.len();
    let mut missing = false;
    name.write_parts(&mut KeyWriter::behind(text, &mut missing));
    if text.len() - start > MAX_KEY_LEN {
        digest_after(text, parts + 1);
    }
    !missing
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::Key;

    const RUN: Owner = Owner::NOBODY;

    fn call(operation: &str, key: &str) -> RecordId {
        RecordId::new(operation, &Key::from_encoded(key).unwrap()).unwrap()
    }

    fn step(call: &RecordId, run: Owner, name: &impl StepName) -> RecordId {
        let step = id_of_step(call, run, name).unwrap();
        let key = Key::from_encoded(step.key()).unwrap();
        assert_eq!(RecordId::new(step.operation(), &key), Some(step.clone()));
        assert!(step.key().len() <= MAX_KEY_LEN);
        step
    }

    #[test]
    fn the_key_of_a_step_is_that_of_its_call_the_run_and_the_parts() {
        for key in ["o-1", "shop:o-1"] {
            let expected = format!("{key}:AAAAAAAAAAAAAAAAAAAAAA");
            assert_eq!(step(&call("orders", key), RUN, &"charge").key(), expected);
        }
        let reserve = step(&call("orders", "o-1"), RUN, &("reserve", "sku 7", ("a", 1)));
        assert_eq!(reserve.operation(), "idem.step/orders/reserve");
        assert_eq!(reserve.name(), "orders/reserve");
        assert_eq!(reserve.key(), "o-1:AAAAAAAAAAAAAAAAAAAAAA:sku%207:(a:1)");
        let missing = id_of_step(&call("orders", "o-1"), RUN, &("reserve", None::<u8>));
        assert!(missing.is_err(), "{missing:?}");
    }

    #[test]
    fn no_two_steps_of_different_names_keys_runs_or_nesting_have_one_id() {
        let other = Owner::from_bytes([9; 16]);
        let long = "x".repeat(300);
        let longer = "y".repeat(250);
        let mut ids = HashSet::new();
        let mut count = 0;
        let mut take = |id: RecordId| {
            count += 1;
            assert!(ids.insert(id.clone()), "{} {}", id.operation(), id.key());
            id
        };
        let digest = Key::encode(long.as_str()).unwrap();
        for operation in ["orders", "orders/charge", "orders/parcel"] {
            for key in ["o-1", "o-1:pen", "(o-1:pen):1", digest.as_str(), &longer] {
                for run in [RUN, other] {
                    let call = call(operation, key);
                    for outer in [
                        take(step(&call, run, &"parcel")),
                        take(step(&call, run, &("parcel", 7))),
                        take(step(&call, run, &("parcel", long.as_str()))),
                    ] {
                        // The run of a step inside is that of the step's own record.
                        let inner =
                            Owner::from_bytes([u8::try_from(outer.key().len() % 251).unwrap(); 16]);
                        take(step(&outer, inner, &"label"));
                        take(step(&outer, inner, &("label", 7)));
                    }
                    take(step(&call, run, &("parcel", (7, 8))));
                    take(step(&call, run, &("parcel", 7, 8)));
                }
            }
        }
        assert_eq!(ids.len(), count);
    }

    #[test]
    fn one_prefix_lists_a_run_also_where_parts_or_the_key_are_digests() {
        let long = "x".repeat(300);
        let digest = Key::encode(long.as_str()).unwrap();
        for key in ["o-1", "shop:o-1", digest.as_str(), &"y".repeat(250)] {
            let call = call("orders", key);
            let others = [
                RecordId::new("orders", &Key::from_encoded("o-10").unwrap()).unwrap(),
                RecordId::new("order", &Key::from_encoded(key).unwrap()).unwrap(),
            ];
            for step in [
                step(&call, RUN, &"charge"),
                step(&call, RUN, &("reserve", 7)),
                step(&call, RUN, &("reserve", long.as_str())),
                step(
                    &step(&call, RUN, &"charge"),
                    Owner::from_bytes([9; 16]),
                    &"bank",
                ),
            ] {
                assert!(step.is_step_of(&call, RUN), "{step:?} of {key}");
                assert!(!step.is_step_of(&call, Owner::from_bytes([9; 16])));
                assert!(others.iter().all(|other| !step.is_step_of(other, RUN)));
            }
            assert!(!call.is_step_of(&call, RUN));
        }
    }
}
