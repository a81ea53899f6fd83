//! The keys that a listing is limited to.

use std::fmt;

use crate::adapter::engine::{escape, first_part};
use crate::record::RecordId;
use crate::{Key, MAX_KEY_LEN};

/// Which keys a [listing](super::Listing::key) has, by their text or by their first part.
///
/// | written | the keys that it has |
/// | --- | --- |
/// | `user-7*` | each whose first part begins with `user-7`, so `user-70` too |
/// | `user-7` | the whole key `user-7`. Several parts are joined by `:`, as a listing shows them |
/// | `*` | all |
///
/// A text is written as people write it, not percent-encoded: `user 7`, and `user%207` is another
/// key, whose text has a percent sign. Case counts. Only a `*` at the end
/// has a meaning: everywhere else, `*` and all other characters stand for themselves. In the key of
/// a `#[derive(KeyPart)]` struct, or with a tuple as first part, the first field is the first part.
///
/// [`first_part`](Self::first_part) has the keys of one tenant alone.
///
/// # Keys that are stored as digests
///
/// A key longer than [256 bytes](crate::MAX_KEY_LEN) and the key of a token are stored as
/// digests. A digest does not say how its key began, so only a filter with the whole key finds a
/// long one, and none finds a token. [`Page::has_digests`](super::Page::has_digests) says that
/// there are such records.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use idem::Key;
/// use idem::store::admin::KeyFilter;
///
/// let of_user_7 = KeyFilter::first_part("user-7");
/// assert!(of_user_7.has(&Key::encode(&("user-7", "o-1")).unwrap()));
/// assert!(!of_user_7.has(&Key::encode(&("user-70", "o-1")).unwrap()));
/// assert!(KeyFilter::from("user-7*").has(&Key::encode(&("user-70", "o-1")).unwrap()));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct KeyFilter(Rule);

/// Texts are encoded.
#[derive(Clone, PartialEq, Eq)]
enum Rule {
    /// One of these keys.
    Whole(Vec<Key>),
    /// The beginning of the first part.
    Beginning(String),
    /// The first part.
    FirstPart(String),
}

/// The parentheses before the first part of a key. Keys with more of them have a range together.
const GROUPS: [&str; 3] = ["", "(", "(("];
const DEEP: &str = "(((";

impl KeyFilter {
    /// Has the keys with this first part, and no others. A key of one part is its own first part.
    pub fn first_part(text: &str) -> Self {
        Self(Rule::FirstPart(escape(text)))
    }

    /// Returns whether it has every key.
    pub fn is_all(&self) -> bool {
        matches!(&self.0, Rule::Beginning(text) if text.is_empty())
    }

    /// Returns the keys of a filter with a whole key: as several parts, and as one.
    pub fn whole_keys(&self) -> Option<&[Key]> {
        match &self.0 {
            Rule::Whole(keys) => Some(keys),
            Rule::Beginning(_) | Rule::FirstPart(_) => None,
        }
    }

    /// Returns whether it has a key. `false` for a digest, unless it was made of the whole key, or
    /// [has all](Self::is_all).
    pub fn has(&self, key: &Key) -> bool {
        self.has_encoded(key.as_str())
    }

    pub(super) fn has_encoded(&self, key: &str) -> bool {
        let rest = || key.trim_start_matches('(');
        match &self.0 {
            Rule::Whole(keys) => keys.iter().any(|one| one.as_str() == key),
            Rule::Beginning(text) => rest().starts_with(text.as_str()),
            Rule::FirstPart(text) => !text.is_empty() && first_part(rest()) == *text,
        }
    }

    /// Returns whether it cannot tell whether it has a key, because the key is stored as a digest.
    pub(super) fn cannot_tell(&self, id: &RecordId) -> bool {
        !self.is_all() && !matches!(self.0, Rule::Whole(_)) && id.key().starts_with('~')
    }

    /// For stores with a sorted index of encoded keys: the ranges that all its keys are in, in
    /// ascending order, by the keys' bytes. A range may have other keys too, so ask
    /// [`Listing::may_match`](super::Listing::may_match).
    pub fn ranges(&self) -> Vec<KeyRange> {
        let mut ranges = match &self.0 {
            Rule::Whole(keys) => keys
                .iter()
                .map(|key| KeyRange::single(key.as_str()))
                .collect(),
            Rule::Beginning(text) if text.is_empty() => vec![KeyRange::beginning_with("")],
            Rule::Beginning(text) => {
                let of = |group: &str| KeyRange::beginning_with(&[group, text].concat());
                let deep = KeyRange::beginning_with(DEEP);
                GROUPS.into_iter().map(of).chain([deep]).collect()
            }
            Rule::FirstPart(text) if text.is_empty() => Vec::new(),
            Rule::FirstPart(text) => {
                let mut ranges = vec![KeyRange::single(text), KeyRange::beginning_with(DEEP)];
                for group in GROUPS {
                    for end in [")", ":"] {
                        let beginning = [group, text.as_str(), end].concat();
                        ranges.push(KeyRange::beginning_with(&beginning));
                    }
                }
                ranges
            }
        };
        ranges.sort();
        ranges
    }

    /// For stores with a sorted index: the range of all keys that are stored as digests.
    pub fn digests() -> KeyRange {
        KeyRange::beginning_with("~")
    }
}

impl From<&str> for KeyFilter {
    /// Reads a filter as a person writes it: see [`KeyFilter`]. An empty text has no key.
    fn from(text: &str) -> Self {
        if let Some(beginning) = text.strip_suffix('*') {
            return Self(Rule::Beginning(escape(beginning)));
        }
        // Also with digests among its parts, which are not encoded.
        let shown = Key::from_encoded(text).filter(|_| !text.contains('%'));
        let parts = Key::from_encoded(&escape_parts(text));
        let mut keys: Vec<Key> = [shown, parts, Key::encode(text)]
            .into_iter()
            .flatten()
            .collect();
        keys.dedup();
        Self(Rule::Whole(keys))
    }
}

/// Encodes a text in which `:`, `(` and `)` are between parts.
fn escape_parts(text: &str) -> String {
    let parts = text.split_inclusive([':', '(', ')']);
    parts
        .map(|part| match part.strip_suffix([':', '(', ')']) {
            Some(before) => [&escape(before), &part[before.len()..]].concat(),
            None => escape(part),
        })
        .collect()
}

impl From<String> for KeyFilter {
    /// Converts as from `&str`.
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<&String> for KeyFilter {
    /// Converts as from `&str`.
    fn from(text: &String) -> Self {
        Self::from(text.as_str())
    }
}

impl fmt::Debug for KeyFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys may be personal data.
        f.write_str("KeyFilter(..)")
    }
}

/// A range of encoded keys, by their bytes: for stores with a sorted index.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct KeyRange {
    /// The first key that is in it.
    pub from: String,
    /// The first key after `from` that is not.
    pub before: String,
}

impl KeyRange {
    /// The lowest character of an encoded key. Lower ones are white space and control characters.
    const LOWEST: char = '!';

    fn single(key: &str) -> Self {
        Self {
            from: key.to_owned(),
            before: [key, "!"].concat(),
        }
    }

    fn beginning_with(text: &str) -> Self {
        Self {
            from: text.to_owned(),
            before: after_all(text),
        }
    }

    /// Returns the part of the range after a key; `None` if nothing is left.
    #[must_use]
    pub fn after(&self, key: &str) -> Option<Self> {
        let mut next = key.to_owned();
        next.push(Self::LOWEST);
        let from = next.max(self.from.clone());
        (from < self.before).then(|| Self {
            from,
            before: self.before.clone(),
        })
    }
}

impl fmt::Debug for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys may be personal data.
        f.write_str("KeyRange(..)")
    }
}

/// Returns the lowest text that is greater than every key that begins with this one.
fn after_all(text: &str) -> String {
    let mut rest = text.to_owned();
    while let Some(last) = rest.pop() {
        // A range of characters leaves out those that are none.
        if let Some(next) = (last..=char::MAX).nth(1) {
            rest.push(next);
            return rest;
        }
    }
    // Longer than any key.
    std::iter::repeat_n(char::MAX, MAX_KEY_LEN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyPart;

    fn has<K: KeyPart + ?Sized>(filter: &KeyFilter, key: &K) -> bool {
        let key = Key::encode(key).unwrap();
        let has = filter.has(&key);
        let in_range = |range: &KeyRange| (&*range.from..&*range.before).contains(&key.as_str());
        assert!(!has || filter.ranges().iter().any(in_range), "{key:?}");
        has
    }

    #[test]
    fn every_character_but_a_star_at_the_end_stands_for_itself() {
        for c in
            " !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~aA0\u{a0}é日🦀\u{d7ff}\u{e000}\u{10ffff}".chars()
        {
            let filter = KeyFilter::from(format!("u{c}*"));
            assert!(has(&filter, &format!("u{c}")), "{c:?}");
            assert!(has(&filter, &(format!("u{c}x"), 1)), "{c:?}");
            assert!(has(&filter, &((format!("u{c}x"), 1), 2)), "{c:?}");
            assert!(
                has(&filter, &((((((format!("u{c}"), 1), 2), 3), 4), 5), 6)),
                "{c:?}"
            );
            for other in ["u", "uX", "%", "x", "U"] {
                assert!(!has(&filter, other), "{c:?} {other}");
                assert!(!has(&filter, &("x", format!("u{c}"))), "{c:?}");
            }
            let one = KeyFilter::first_part(&format!("u{c}"));
            assert!(has(&one, &format!("u{c}")) && has(&one, &(format!("u{c}"), "x")));
            assert!(has(&one, &((format!("u{c}"), 1), "x")));
            assert!(!has(&one, &format!("u{c}x")) && !has(&one, "u"), "{c:?}");
            let whole = KeyFilter::from(format!("u{c}x"));
            assert!(has(&whole, &format!("u{c}x")) && !has(&whole, &format!("u{c}")));
        }
    }

    #[test]
    fn a_whole_key_is_written_by_its_parts_or_as_one_part() {
        let filter = KeyFilter::from("a:b");
        assert!(has(&filter, &("a", "b")) && has(&filter, "a:b"));
        assert!(!has(&filter, "a") && !has(&filter, &("a", "b", "c")));
        let filter = KeyFilter::from("Zoë 7:(a b:100%)");
        assert!(has(&filter, &("Zoë 7", ("a b", "100%"))));
        assert!(has(&filter, "Zoë 7:(a b:100%)"));
        // Not what a listing shows: that is the text of another key.
        for (written, shown) in [("user 7", "user%207"), ("100%", "100%25"), ("a:b", "a%3Ab")] {
            assert_eq!(Key::encode(written).unwrap().as_str(), shown);
            assert!(has(&KeyFilter::from(written), written));
            assert!(!has(&KeyFilter::from(shown), written), "{shown}");
            assert!(has(&KeyFilter::from(shown), shown), "{shown}");
        }
        let token = "~t0123456789abcdefghijkl";
        let token = Key::from_encoded(token).unwrap();
        assert!(KeyFilter::from(token.as_str()).has(&token));
        let long = "k".repeat(300);
        assert!(has(&KeyFilter::from(&long), &long));
        for none in ["", "\u{0}"] {
            assert!(!has(&KeyFilter::from(none), "a"));
        }
    }

    #[test]
    fn only_a_bare_star_has_all_keys_and_digests_are_beyond_the_others() {
        let long = Key::encode(&"k".repeat(300)).unwrap();
        let id = RecordId::new("orders", &long).unwrap();
        assert!(KeyFilter::from("*").is_all() && KeyFilter::from("*").has(&long));
        assert!(!KeyFilter::from("*").cannot_tell(&id));
        for filter in ["k*", "~*", "**", "%7E*"].map(KeyFilter::from) {
            assert!(!filter.is_all() && !filter.has(&long) && filter.cannot_tell(&id));
        }
        assert!(KeyFilter::first_part("k").cannot_tell(&id));
        assert!(!KeyFilter::from("k").cannot_tell(&id));
        assert!(!KeyFilter::first_part("").has(&long));
        let digests = KeyFilter::digests();
        assert!((&*digests.from..&*digests.before).contains(&long.as_str()));
    }

    #[test]
    fn a_range_goes_on_after_a_key() {
        let range = KeyRange::beginning_with("u-");
        assert_eq!((&*range.from, &*range.before), ("u-", "u."));
        assert_eq!(
            range.after("a").map(|range| range.from).as_deref(),
            Some("u-")
        );
        assert_eq!(
            range.after("u-1").map(|range| range.from).as_deref(),
            Some("u-1!")
        );
        assert!(range.after("u.").is_none());
        assert!(KeyRange::single("u").after("u").is_none());
        assert_eq!(after_all("a\u{10ffff}"), "b");
        assert!(after_all("\u{10ffff}") > "\u{10ffff}".repeat(64));
        let filter = KeyFilter::from("jane*");
        assert!(!format!("{filter:?} {:?}", filter.ranges()).contains("jane"));
    }
}
