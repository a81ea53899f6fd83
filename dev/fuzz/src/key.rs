//! Keys: whatever the parts hold, they can be read out of the key again, so no two lists of parts
//! have one key.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use idem_core::record::{RecordId, is_valid_operation};
use idem_core::{Key, KeyPart, KeyWriter, MAX_KEY_LEN};

use crate::Input;

/// An operation's name, and parts.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let operation = input.text();
    let part = Part::made_up(&mut input, 0);
    let key = Key::encode(&part);
    assert_eq!(Key::encode(&&part), key, "a reference is the same part");

    let mut nodes = Vec::new();
    if !part.list(&mut true, &mut nodes) {
        assert_eq!(key, None, "a missing part makes the key missing: {part:?}");
        return;
    }
    let key = key.unwrap_or_else(|| panic!("no part of {part:?} is missing"));
    let mut text = String::new();
    write(&nodes, &mut text);
    assert_eq!(read(&text), Some(nodes), "{text}");
    if text.len() > MAX_KEY_LEN {
        text = format!(
            "~{}",
            BASE64.encode(blake3::hash(text.as_bytes()).as_bytes())
        );
    } else {
        assert!(!text.starts_with('~'), "a short key is no digest");
    }
    assert_eq!(key.as_str(), text);
    assert!(!key.as_str().is_empty() && key.as_str().len() <= MAX_KEY_LEN);
    assert!(
        !key.as_str()
            .contains(|c: char| c.is_control() || c.is_whitespace() || matches!(c, '{' | '}'))
    );
    named(&operation, &key);
}

/// A name and a key make one text, in which the first single colon stands between them.
fn named(operation: &str, key: &Key) {
    let of_a_name = |c: char| c.is_alphanumeric() || "_-./#@+".contains(c);
    let mut rest = operation;
    let valid = loop {
        let end = rest.find(|c| !of_a_name(c)).unwrap_or(rest.len());
        match rest[end..].strip_prefix("::") {
            _ if end == 0 => break false,
            None => break end == rest.len(),
            Some(next) => rest = next,
        }
    };
    assert_eq!(
        is_valid_operation(operation),
        valid && operation.len() <= 128,
        "{operation:?}"
    );
    let Some(id) = RecordId::new(operation, key) else {
        assert!(!is_valid_operation(operation));
        return;
    };
    assert!(is_valid_operation(operation));
    assert_eq!((id.operation(), id.key()), (operation, key.as_str()));
    let text = id.as_str();
    let mut end = 0;
    while let Some(at) = text[end..].find(':') {
        end += at;
        if !text[end..].starts_with("::") {
            break;
        }
        end += 2;
    }
    assert_eq!(
        (&text[..end], &text[end + 1..]),
        (operation, key.as_str()),
        "the name runs into the key"
    );
}

/// All that can be written to a key.
#[derive(Debug)]
enum Part {
    Text(String),
    /// Shown in pieces, as a `Display` may.
    Shown(Vec<String>),
    Number(i128),
    Bool(bool),
    Char(char),
    Optional(Option<Box<Part>>),
    /// One to eight, as a real tuple.
    Tuple(Vec<Part>),
    /// As a derived struct.
    Group(Vec<Part>),
    /// One behind the other, as a type's own implementation may.
    Several(Vec<Part>),
}

impl Part {
    fn made_up(input: &mut Input<'_>, depth: u8) -> Self {
        let kinds = if depth < 5 { 10 } else { 6 };
        match input.below(kinds) {
            0 | 1 => Self::Text(input.text()),
            2 => Self::Shown((0..input.below(4)).map(|_| input.text()).collect()),
            3 => Self::Number(i128::from_be_bytes(input.array())),
            4 => Self::Bool(input.flag()),
            5 => Self::Char(
                char::from_u32(u32::from_be_bytes(input.array()) % 0x11_0000).unwrap_or('\u{fffd}'),
            ),
            6 => Self::Optional(
                input
                    .flag()
                    .then(|| Box::new(Self::made_up(input, depth + 1))),
            ),
            7 => Self::Tuple(Self::list_of(input, depth, 1)),
            8 => Self::Group(Self::list_of(input, depth, 0)),
            _ => Self::Several(Self::list_of(input, depth, 1)),
        }
    }

    fn list_of(input: &mut Input<'_>, depth: u8, least: u8) -> Vec<Self> {
        let len = if input.is_empty() {
            least
        } else {
            least + input.below(9 - least)
        };
        (0..len).map(|_| Self::made_up(input, depth + 1)).collect()
    }

    /// Collects its meaning, however it is written; false if a part is missing.
    fn list(&self, outermost: &mut bool, nodes: &mut Vec<Node>) -> bool {
        let mut leaf = |text: String| {
            *outermost = false;
            let present = !text.is_empty();
            nodes.push(Node::Leaf(text));
            present
        };
        match self {
            Self::Text(text) => leaf(text.clone()),
            Self::Shown(pieces) => leaf(pieces.concat()),
            Self::Number(number) => leaf(number.to_string()),
            Self::Bool(value) => leaf(value.to_string()),
            Self::Char(value) => leaf(value.to_string()),
            Self::Optional(None) => false,
            Self::Optional(Some(part)) => part.list(outermost, nodes),
            Self::Several(parts) => all(parts, outermost, nodes),
            // The tuple that is the whole key needs no parentheses.
            Self::Tuple(parts) if std::mem::take(outermost) => all(parts, &mut false, nodes),
            Self::Tuple(parts) | Self::Group(parts) => {
                *outermost = false;
                let mut inner = Vec::new();
                let present = all(parts, &mut false, &mut inner) && !inner.is_empty();
                nodes.push(Node::Group(inner));
                present
            }
        }
    }
}

/// Up to the first that is missing.
fn all(parts: &[Part], outermost: &mut bool, nodes: &mut Vec<Node>) -> bool {
    parts.iter().all(|part| part.list(outermost, nodes))
}

impl KeyPart for Part {
    #[allow(clippy::many_single_char_names)]
    fn write_to(&self, key: &mut KeyWriter<'_>) {
        match self {
            Self::Text(text) => text.write_to(key),
            Self::Shown(pieces) => key.display(Pieces(pieces)),
            Self::Number(number) => number.write_to(key),
            Self::Bool(value) => value.write_to(key),
            Self::Char(value) => value.write_to(key),
            Self::Optional(part) => part.write_to(key),
            Self::Tuple(parts) => match parts.as_slice() {
                [] => key.missing(),
                [a] => (a,).write_to(key),
                [a, b] => (a, b).write_to(key),
                [a, b, c] => (a, b, c).write_to(key),
                [a, b, c, d] => (a, b, c, d).write_to(key),
                [a, b, c, d, e] => (a, b, c, d, e).write_to(key),
                [a, b, c, d, e, f] => (a, b, c, d, e, f).write_to(key),
                [a, b, c, d, e, f, g] => (a, b, c, d, e, f, g).write_to(key),
                [a, b, c, d, e, f, g, h, ..] => (a, b, c, d, e, f, g, h).write_to(key),
            },
            Self::Group(parts) => key.group(|key| parts.iter().for_each(|part| part.write_to(key))),
            Self::Several(parts) => parts.iter().for_each(|part| part.write_to(key)),
        }
    }
}

struct Pieces<'a>(&'a [String]);

impl fmt::Display for Pieces<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| f.write_str(piece))
    }
}

/// The content of a key: texts, and groups of them.
#[derive(Debug, PartialEq, Eq)]
enum Node {
    Leaf(String),
    Group(Vec<Node>),
}

/// The format as the documentation of `key.rs` has it.
fn write(nodes: &[Node], text: &mut String) {
    for (at, node) in nodes.iter().enumerate() {
        if at > 0 {
            text.push(':');
        }
        match node {
            Node::Group(inner) => {
                text.push('(');
                write(inner, text);
                text.push(')');
            }
            Node::Leaf(part) => {
                for c in part.chars() {
                    if c.is_control() || c.is_whitespace() || "%:(){}~\"\\".contains(c) {
                        let mut utf8 = [0; 4];
                        text.extend(
                            c.encode_utf8(&mut utf8)
                                .bytes()
                                .map(|byte| format!("%{byte:02X}")),
                        );
                    } else {
                        text.push(c);
                    }
                }
            }
        }
    }
}

/// The parts again. That this can be written is why no two lists of parts have one key.
fn read(text: &str) -> Option<Vec<Node>> {
    let mut rest = text;
    let nodes = read_list(&mut rest)?;
    rest.is_empty().then_some(nodes)
}

fn read_list(rest: &mut &str) -> Option<Vec<Node>> {
    let mut nodes = Vec::new();
    loop {
        if let Some(inner) = rest.strip_prefix('(') {
            *rest = inner;
            nodes.push(Node::Group(read_list(rest)?));
            *rest = rest.strip_prefix(')')?;
        } else {
            let (part, after) = rest.split_at(rest.find([':', '(', ')']).unwrap_or(rest.len()));
            *rest = after;
            nodes.push(Node::Leaf(unescape(part)?));
        }
        match rest.strip_prefix(':') {
            Some(next) => *rest = next,
            None => return Some(nodes),
        }
    }
}

fn unescape(part: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = part.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}
