//! Redis URLs: whatever is wrong with one, nothing that is shown of it has the password in it.

use std::error::Error;

use idem_core::StoreErrorKind;

use crate::Input;
use crate::target::Target;

const SECRET: &str = "hunter2";
const SCHEMES: [&str; 9] = [
    "redis",
    "rediss",
    "valkey",
    "unix",
    "redis+unix",
    "redis+sentinel",
    "redis+cluster",
    "http",
    "Redis",
];

/// The first byte says whether a text is read, or a URL is put together around a password.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    if input.byte() == 0 {
        with_password(&mut input);
    } else {
        let _ = shown(&String::from_utf8_lossy(data));
    }
}

/// `scheme://user:..password..@host..`, or a socket, or with other slashes than two, with anything
/// at all around the password that people may have forgotten to encode.
fn with_password(input: &mut Input<'_>) {
    let begin = usize::from(input.byte());
    let scheme = SCHEMES[begin % 9];
    let slashes = ["//", "", "/", "///"][begin / 9 % 4];
    let user = input.text();
    let before = input.text();
    let after = input.text();
    let host = input.text();
    if [&user, &before, &after, &host]
        .iter()
        .any(|piece| piece.to_lowercase().contains(SECRET))
    {
        return;
    }
    // A URL is read without these, wherever they stand.
    let user = user.replace(['\t', '\n', '\r'], "");
    let text = if scheme.ends_with("unix") && (slashes != "//" || user.contains('/')) {
        // A socket has a path, which does not hold a password: that is a parameter.
        format!("{scheme}:///run/redis.sock?pass={before}{SECRET}{after}")
    } else {
        format!("{scheme}:{slashes}{user}:{before}{SECRET}{after}@{host}")
    };
    let shown = shown(&text);
    assert!(
        !shown.to_lowercase().contains(SECRET),
        "{text:?} is shown as {shown:?}"
    );
}

/// The name of a server, or an error and its causes.
fn shown(text: &str) -> String {
    let error = match Target::parse(text) {
        Ok(target) => {
            let is_path = target.name.contains(":///");
            assert!(
                is_path || !target.name.contains(['@', '?', '#']),
                "{text:?} is named {}",
                target.name
            );
            return target.name.to_string();
        }
        Err(error) => error,
    };
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{text:?}: {error}");
    let mut shown = String::new();
    let mut next = Some(&error as &dyn Error);
    while let Some(error) = next {
        shown.extend([format!("{error} {error:?} ")]);
        next = error.source();
    }
    shown
}
