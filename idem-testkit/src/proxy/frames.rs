//! As much of the Redis protocol as it takes to tell where a request or a reply ends.

/// The first frame of the bytes that were read so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<T> {
    /// Not all of it has been read yet.
    Part,
    /// All of it, and its length.
    Whole(T, usize),
    /// Another protocol.
    Unknown,
}

/// The kind of a frame from the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplyKind {
    /// The answer to a request, or one of several to the same.
    Reply,
    /// Nobody asked for it.
    Message,
}

type Words<'a> = Vec<&'a [u8]>;

/// The words of a request, which is a list of words, or a line.
pub(super) fn request(bytes: &[u8]) -> Frame<Words<'_>> {
    match bytes.first() {
        None => Frame::Part,
        Some(b'*') => match words(bytes) {
            Ok(Some((words, length))) => Frame::Whole(words, length),
            Ok(None) => Frame::Part,
            Err(NotRedis) => Frame::Unknown,
        },
        Some(first) if first.is_ascii_alphabetic() => match line(bytes, 0) {
            Some((text, end)) => Frame::Whole(text.split(|byte| *byte == b' ').collect(), end),
            None => Frame::Part,
        },
        Some(_) => Frame::Unknown,
    }
}

/// Reads a frame from the server.
pub(super) fn reply(bytes: &[u8]) -> Frame<ReplyKind> {
    match bytes.first() {
        None => return Frame::Part,
        Some(
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' | b'$' | b'!' | b'=' | b'*' | b'~'
            | b'>' | b'%',
        ) => {}
        Some(_) => return Frame::Unknown,
    }
    match end_of_reply(bytes) {
        Ok(Some(end)) => Frame::Whole(kind_of_reply(bytes), end),
        Ok(None) => Frame::Part,
        Err(NotRedis) => Frame::Unknown,
    }
}

struct NotRedis;

fn words(bytes: &[u8]) -> Result<Option<(Words<'_>, usize)>, NotRedis> {
    let Some((head, mut at)) = line(bytes, 0) else {
        return Ok(None);
    };
    let mut words = Vec::new();
    for _ in 0..length(head)?.unwrap_or_default() {
        let Some((head, end)) = line(bytes, at) else {
            return Ok(None);
        };
        let Some(length) = length(head)? else {
            return Err(NotRedis);
        };
        let Some(word) = bytes.get(end..end + length) else {
            return Ok(None);
        };
        words.push(word);
        at = end + length + 2;
    }
    Ok((at <= bytes.len()).then_some((words, at)))
}

fn end_of_reply(bytes: &[u8]) -> Result<Option<usize>, NotRedis> {
    let mut at = 0;
    let mut left = 1;
    while left > 0 {
        let Some((head, end)) = line(bytes, at) else {
            return Ok(None);
        };
        left -= 1;
        at = end;
        match head.first() {
            Some(b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(') => {}
            Some(b'$' | b'!' | b'=') => at += length(head)?.map_or(0, |length| length + 2),
            Some(b'*' | b'~' | b'>') => left += length(head)?.unwrap_or_default(),
            Some(b'%') => left += 2 * length(head)?.unwrap_or_default(),
            _ => return Err(NotRedis),
        }
    }
    Ok((at <= bytes.len()).then_some(at))
}

/// A push is a message, unless it is how a subscription is confirmed.
fn kind_of_reply(bytes: &[u8]) -> ReplyKind {
    if bytes.first() != Some(&b'>') {
        return ReplyKind::Reply;
    }
    let kind = line(bytes, 0)
        .and_then(|(_, at)| line(bytes, at))
        .and_then(|(_, at)| line(bytes, at));
    match kind {
        Some((kind, _)) if kind.ends_with(b"subscribe") => ReplyKind::Reply,
        _ => ReplyKind::Message,
    }
}

/// The line that begins at a place, without its end, and where the next one begins.
fn line(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = bytes.get(at..)?;
    let length = rest.windows(2).position(|two| two == b"\r\n")?;
    Some((rest.get(..length)?, at + length + 2))
}

/// The number behind a line's first character; `None` for the length of nothing, which is -1.
fn length(head: &[u8]) -> Result<Option<usize>, NotRedis> {
    let number = head
        .get(1..)
        .and_then(|digits| std::str::from_utf8(digits).ok())
        .ok_or(NotRedis)?;
    Ok(usize::try_from(number.parse::<i64>().map_err(|_| NotRedis)?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_known_when_all_of_it_is_there() {
        let whole = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n\r\n\r\n\r\nPING\r\n";
        let length = whole.len() - 6;
        for end in 0..length {
            assert_eq!(request(&whole[..end]), Frame::Part, "{end}");
        }
        assert_eq!(
            request(whole),
            Frame::Whole(vec![&b"SET"[..], b"k", b"\r\n\r\n"], length)
        );
        assert_eq!(
            request(&whole[length..]),
            Frame::Whole(vec![&b"PING"[..]], 6)
        );
        assert_eq!(request(b"\x16\x03\x01"), Frame::Unknown);
    }

    #[test]
    fn a_reply_is_known_when_all_of_it_is_there() {
        for whole in [
            "+OK\r\n",
            "-ERR x\r\n",
            "$-1\r\n",
            "_\r\n",
            "*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
            "%1\r\n+a\r\n$0\r\n\r\n",
        ] {
            for end in 0..whole.len() {
                assert_eq!(
                    reply(&whole.as_bytes()[..end]),
                    Frame::Part,
                    "{whole:?} {end}"
                );
            }
            assert_eq!(
                reply(whole.as_bytes()),
                Frame::Whole(ReplyKind::Reply, whole.len()),
                "{whole:?}"
            );
        }
        assert_eq!(reply(b"\x15\x03"), Frame::Unknown);
    }

    #[test]
    fn what_is_pushed_answers_nothing_unless_it_confirms() {
        let message = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$0\r\n\r\n";
        assert_eq!(
            reply(message),
            Frame::Whole(ReplyKind::Message, message.len())
        );
        let confirmed = b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";
        assert_eq!(
            reply(confirmed),
            Frame::Whole(ReplyKind::Reply, confirmed.len())
        );
    }
}
