//! The name of a step, and the key of its record.

use std::borrow::Cow;

use crate::encoding::key::{KeyPart, KeyWriter, MAX_KEY_LEN, digest_after};

/// The name of a [`step`](crate::step): a text, or a tuple of a text and up to seven key parts.
///
/// The text has the characters of an operation's name, without `/`. The parts tell the runs of a
/// loop apart: each is a [`KeyPart`].
///
/// | the step | its record, if the call is `orders.place` with the key `o-1` |
/// | --- | --- |
/// | `step("charge", ..)` | operation `orders.place/charge`, key `o-1` |
/// | `step(("reserve", "sku-7"), ..)` | operation `orders.place/reserve`, key `o-1:sku-7` |
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

    /// Returns whether there are parts after the text.
    #[doc(hidden)]
    fn has_parts(&self) -> bool {
        false
    }

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

    fn has_parts(&self) -> bool {
        (**self).has_parts()
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

            fn has_parts(&self) -> bool {
                let parts: &[&str] = &[$(stringify!($part)),*];
                !parts.is_empty()
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

/// Writes the key of a step behind what is there already: the encoded key of its call, and then the
/// further parts of its name. Says whether it is there: not if a part of it is missing.
pub(crate) fn write_step_after<N: StepName + ?Sized>(
    text: &mut String,
    call: &str,
    name: &N,
) -> bool {
    if !name.has_parts() {
        text.push_str(call);
        return true;
    }
    let start = text.len();
    if is_group(call) {
        text.push('(');
        text.push_str(call);
        text.push(')');
    } else {
        text.push_str(call);
    }
    let mut missing = false;
    name.write_parts(&mut KeyWriter::behind(text, &mut missing));
    // A digest is never a part of a key.
    if call.starts_with('~') || text.len() - start > MAX_KEY_LEN {
        digest_after(text, start);
    }
    !missing
}

/// Returns whether this can be the key of a step, so many steps below the call with that key.
pub(crate) fn is_step_key(key: &str, call: &str, steps: usize) -> bool {
    if key == call {
        return true;
    }
    let mut parts = split(key);
    let (Some(first), Some(_)) = (parts.next(), parts.next()) else {
        return false;
    };
    let inner = first
        .strip_prefix('(')
        .and_then(|rest| rest.strip_suffix(')'));
    match inner {
        Some(inner) if is_group(call) && inner == call => true,
        Some(inner) if steps > 1 && first != call => is_step_key(inner, call, steps - 1),
        _ => first == call && !is_group(call),
    }
}

/// Whether an encoded key has several parts.
fn is_group(key: &str) -> bool {
    split(key).nth(1).is_some()
}

/// The outermost parts of an encoded key.
fn split(key: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    key.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ':' && depth == 0
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::encoding::key::Key;

    fn key_of(call: &str, name: &impl StepName) -> Option<String> {
        let mut text = String::new();
        write_step_after(&mut text, call, name).then_some(text)
    }

    #[test]
    fn the_key_of_a_step_is_that_of_its_call_or_the_tuple_of_it_and_the_parts() {
        let encode = |key: &dyn Fn() -> Option<Key>| key().map(|key| key.as_str().to_owned());
        assert_eq!(key_of("o-1", &"charge"), Some("o-1".to_owned()));
        assert_eq!(key_of("shop:o-1", &"charge"), Some("shop:o-1".to_owned()));
        assert_eq!(
            key_of("o-1", &("reserve", "sku 7")),
            encode(&|| Key::encode(&("o-1", "sku 7")))
        );
        assert_eq!(
            key_of("shop:o-1", &("reserve", 7, "b")),
            encode(&|| Key::encode(&(("shop", "o-1"), 7, "b")))
        );
        assert_eq!(
            key_of("o-1", &("reserve", ("a", 1))),
            encode(&|| Key::encode(&("o-1", ("a", 1))))
        );
        for missing in [
            key_of("o-1", &("reserve", "")),
            key_of("o-1", &("reserve", None::<u8>)),
        ] {
            assert_eq!(missing, None);
        }
    }

    #[test]
    fn a_long_key_of_a_step_is_a_digest_that_differs_with_each_part() {
        let long = Key::encode(&"x".repeat(300)).unwrap();
        assert!(long.is_digest());
        let one = key_of(long.as_str(), &("reserve", 1)).unwrap();
        let two = key_of(long.as_str(), &("reserve", 2)).unwrap();
        let part = key_of("o-1", &("reserve", "x".repeat(300))).unwrap();
        assert_ne!(one, two);
        for key in [one, two, part] {
            assert!(Key::from_encoded(&key).unwrap().is_digest(), "{key}");
        }
        assert_eq!(key_of(long.as_str(), &"charge").unwrap(), long.as_str());
    }

    #[test]
    fn the_keys_of_the_steps_of_one_call_are_told_from_those_of_another() {
        for (key, call, steps, is_one) in [
            ("o-1", "o-1", 1, true),
            ("o-1:sku", "o-1", 1, true),
            ("o-1:sku:2", "o-1", 1, true),
            ("o-10:sku", "o-1", 1, false),
            ("o-2", "o-1", 1, false),
            ("(shop:o-1):sku", "shop:o-1", 1, true),
            ("shop:o-1", "shop:o-1", 1, true),
            ("shop:o-1:sku", "shop:o-1", 1, false),
            ("shop:o-1", "shop", 1, true),
            ("(shop:o-1):sku", "shop", 1, false),
            ("(o-1:sku):x", "o-1", 2, true),
            ("(o-2:sku):x", "o-1", 2, false),
            ("(shop:o-1):sku", "(shop:o-1)", 1, true),
        ] {
            assert_eq!(is_step_key(key, call, steps), is_one, "{key} of {call}");
        }
    }
}
