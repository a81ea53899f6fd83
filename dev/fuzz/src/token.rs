//! One-time tokens: what was printed is read again, and what was not printed is refused.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use idem_core::Token;
use idem_core::bounds::AsToken as _;

use crate::Input;

/// Before the check.
const CHECKED: usize = 23;

/// The first byte says whether a text is read, or a token is put together and then changed.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    if input.byte() == 0 {
        let checked = input.array::<CHECKED>();
        let text = BASE64.encode([&checked[..], &check(&checked)].concat());
        assert_eq!(read(&text), has_a_time(&checked), "{text}");
        read(&changed(&text, &mut input));
    } else {
        read(&String::from_utf8_lossy(data));
    }
}

/// One character is another, or missing, or one more.
fn changed(text: &str, input: &mut Input<'_>) -> String {
    let mut text: Vec<char> = text.chars().collect();
    let at = usize::from(input.byte()) % text.len();
    let other = input.text().chars().next();
    match (input.below(3), other) {
        (0, Some(other)) => text[at] = other,
        (1, Some(other)) => text.insert(at, other),
        _ => drop(text.remove(at)),
    }
    text.into_iter().collect()
}

/// Whether it is a token.
fn read(text: &str) -> bool {
    let token = text.parse::<Token>();
    assert_eq!(token.is_ok(), is_token(text), "{text:?}");
    assert_eq!(text.as_token().ok(), token.clone().ok());
    let in_json =
        serde_json::from_str::<Token>(&serde_json::to_string(text).expect("a text is JSON"));
    assert_eq!(in_json.ok(), token.clone().ok());
    match token {
        Ok(token) => {
            assert_eq!(token.to_string(), text);
            assert_eq!(
                format!("{token:?}"),
                format!("Token({}\u{2026})", &text[..4])
            );
            true
        }
        Err(error) => {
            assert!(
                text.len() < 8 || !error.to_string().contains(text),
                "the error shows {text:?}"
            );
            false
        }
    }
}

/// The format as the documentation of `token.rs` has it.
fn is_token(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    text.len() == 36
        && text.chars().all(plain)
        && BASE64
            .decode(text)
            .is_ok_and(|bytes| has_a_time(&bytes) && bytes[CHECKED..] == check(&bytes[..CHECKED]))
}

/// Whether it says a time for which tokens are issued: a second to a hundred years.
fn has_a_time(bytes: &[u8]) -> bool {
    let seconds = bytes[16..20]
        .iter()
        .fold(0, |seconds: u64, byte| seconds << 8 | u64::from(*byte));
    (1..=100 * 365 * 24 * 60 * 60).contains(&seconds)
}

fn check(checked: &[u8]) -> [u8; 4] {
    let mut check = [0; 4];
    let mut hasher = blake3::Hasher::new_derive_key("idem one-time token: check, version 1");
    hasher.update(checked).finalize_xof().fill(&mut check);
    check
}
