//! As much of the protocols of PostgreSQL and MySQL as it takes to tell which statement a request
//! carries. On one connection a client has one request under way, so that all that the server sends
//! belongs to the last one.

use std::collections::HashMap;

use super::frames::Frame;

/// The messages that passed on one connection.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// PostgreSQL: the first message, which has no type, has passed.
    begun: bool,
    /// The texts of prepared statements, by name or number.
    statements: HashMap<Vec<u8>, Vec<u8>>,
    /// MySQL: the statement whose number comes with the reply.
    preparing: Option<Vec<u8>>,
}

/// The statement of a request, and then its parameters; nothing for a request of another kind, such
/// as the one that prepares a statement.
pub(super) type Words = Vec<Vec<u8>>;

/// A request for TLS, in place of the first message.
const TLS: &[u8] = &80_877_103u32.to_be_bytes();

/// Reads a request to PostgreSQL: the messages up to the one that the server waits for.
pub(super) fn postgres(bytes: &[u8], session: &mut Conversation) -> Frame<Words> {
    if !session.begun {
        let Some(length) = big_endian(bytes, 0) else {
            return Frame::Part;
        };
        let Some(message) = bytes.get(4..length) else {
            return Frame::Part;
        };
        session.begun = message != TLS;
        return Frame::Whole(Words::new(), length);
    }
    let mut at = 0;
    let mut words = Words::new();
    loop {
        let (Some(kind), Some(length)) = (bytes.get(at), big_endian(bytes, at + 1)) else {
            return Frame::Part;
        };
        let Some(body) = bytes.get(at + 5..at + 1 + length) else {
            return Frame::Part;
        };
        at += 1 + length;
        match kind {
            b'Q' => return Frame::Whole(vec![text(body).0.to_vec()], at),
            b'P' => {
                let (name, rest) = text(body);
                session
                    .statements
                    .insert(name.to_vec(), text(rest).0.to_vec());
            }
            b'B' => words = bound(body, session).unwrap_or_default(),
            // The server answers after these.
            b'S' | b'p' | b'X' => return Frame::Whole(words, at),
            _ => {}
        }
    }
}

/// The statement and the parameters of a `Bind`.
fn bound(body: &[u8], session: &Conversation) -> Option<Words> {
    let (_portal, rest) = text(body);
    let (name, mut rest) = text(rest);
    let mut words = vec![session.statements.get(name)?.clone()];
    let formats = usize::from(short(rest)?);
    rest = rest.get(2 + 2 * formats..)?;
    let parameters = short(rest)?;
    rest = rest.get(2..)?;
    for _ in 0..parameters {
        // `NULL` has the length -1.
        let length = big_endian(rest, 0)?;
        let length = if i32::try_from(length).is_ok() {
            length
        } else {
            0
        };
        words.push(rest.get(4..4 + length)?.to_vec());
        rest = rest.get(4 + length..)?;
    }
    Some(words)
}

/// Reads a request to MySQL or MariaDB: one packet, or several where it is long.
pub(super) fn mysql(bytes: &[u8], session: &mut Conversation) -> Frame<Words> {
    const LONGEST: usize = 0xff_ffff;

    let mut at = 0;
    let mut payload = Vec::new();
    let Some(number) = bytes.get(3).copied() else {
        return Frame::Part;
    };
    loop {
        let Some(head) = bytes.get(at..at + 4) else {
            return Frame::Part;
        };
        let length = head
            .iter()
            .take(3)
            .rev()
            .fold(0, |length, byte| length << 8 | usize::from(*byte));
        let Some(part) = bytes.get(at + 4..at + 4 + length) else {
            return Frame::Part;
        };
        payload.extend_from_slice(part);
        at += 4 + length;
        if length < LONGEST {
            break;
        }
    }
    // A command begins to count; what comes before the first one does not.
    let words = match payload.split_first() {
        Some((0x03, text)) if number == 0 => vec![text.to_vec()],
        Some((0x16, text)) if number == 0 => {
            session.preparing = Some(text.to_vec());
            Words::new()
        }
        Some((0x17, rest)) if number == 0 => executed(rest, session).unwrap_or_default(),
        _ => Words::new(),
    };
    Frame::Whole(words, at)
}

/// The statement that is carried out, and all its parameters as they are sent.
fn executed(rest: &[u8], session: &Conversation) -> Option<Words> {
    let (number, parameters) = rest.split_at_checked(4)?;
    Some(vec![
        session.statements.get(number)?.clone(),
        parameters.to_vec(),
    ])
}

/// Looks at what MySQL sends: the number of a statement that was to be prepared. `false`: more of
/// it must be read.
pub(super) fn mysql_reply(bytes: &[u8], session: &mut Conversation) -> bool {
    if session.preparing.is_none() {
        return true;
    }
    let number = match bytes.get(4) {
        None => return false,
        Some(0) => match bytes.get(5..9) {
            None => return false,
            number => number,
        },
        // An error.
        Some(_) => None,
    };
    if let (Some(text), Some(number)) = (session.preparing.take(), number) {
        session.statements.insert(number.to_vec(), text);
    }
    true
}

/// The text up to the next zero, and what comes after that.
fn text(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    (
        bytes.get(..end).unwrap_or_default(),
        bytes.get(end + 1..).unwrap_or_default(),
    )
}

fn short(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.first_chunk()?))
}

fn big_endian(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [&[kind], &length[..], body].concat()
    }

    #[test]
    fn postgres_binds_a_statement_that_was_prepared_before() {
        let mut session = Conversation::default();
        let tls = [&8u32.to_be_bytes()[..], TLS].concat();
        assert_eq!(postgres(&tls, &mut session), Frame::Whole(Words::new(), 8));
        let start = [&9u32.to_be_bytes()[..], &[0, 3, 0, 0, 0]].concat();
        assert_eq!(
            postgres(&start, &mut session),
            Frame::Whole(Words::new(), 9)
        );
        let prepare = [
            message(b'P', b"s1\0SELECT $1\0\0\0"),
            message(b'D', b"Ss1\0"),
            message(b'S', b""),
        ]
        .concat();
        assert_eq!(
            postgres(&prepare, &mut session),
            Frame::Whole(Words::new(), prepare.len())
        );
        let bind = b"\0s1\0\0\x01\0\x01\0\x02\0\0\0\x01k\xff\xff\xff\xff\0\0";
        let run = [
            message(b'B', bind),
            message(b'E', b"\0\0\0\0\0"),
            message(b'S', b""),
        ]
        .concat();
        for end in 0..run.len() {
            assert_eq!(postgres(&run[..end], &mut session), Frame::Part, "{end}");
        }
        let words = vec![b"SELECT $1".to_vec(), b"k".to_vec(), Vec::new()];
        assert_eq!(postgres(&run, &mut session), Frame::Whole(words, run.len()));
        let plain = message(b'Q', b"LISTEN c\0");
        assert_eq!(
            postgres(&plain, &mut session),
            Frame::Whole(vec![b"LISTEN c".to_vec()], plain.len())
        );
    }

    #[test]
    fn mysql_carries_out_the_statement_whose_number_the_server_gave() {
        let mut session = Conversation::default();
        let packet = |number: u8, payload: &[u8]| {
            [
                &[u8::try_from(payload.len()).unwrap(), 0, 0, number],
                payload,
            ]
            .concat()
        };
        // The answer to the greeting is not a command.
        let hello = packet(1, b"\x03SELECT 1");
        assert_eq!(
            mysql(&hello, &mut session),
            Frame::Whole(Words::new(), hello.len())
        );
        let prepare = packet(0, b"\x16SELECT ?");
        assert_eq!(
            mysql(&prepare, &mut session),
            Frame::Whole(Words::new(), prepare.len())
        );
        let reply = packet(1, b"\0\x07\0\0\0\x01\0");
        assert!(!mysql_reply(&reply[..8], &mut session));
        assert!(mysql_reply(&reply, &mut session));
        let run = packet(0, b"\x17\x07\0\0\0rest");
        for end in 0..run.len() {
            assert_eq!(mysql(&run[..end], &mut session), Frame::Part, "{end}");
        }
        let words = vec![b"SELECT ?".to_vec(), b"rest".to_vec()];
        assert_eq!(mysql(&run, &mut session), Frame::Whole(words, run.len()));
        let plain = packet(0, b"\x03COMMIT");
        assert_eq!(
            mysql(&plain, &mut session),
            Frame::Whole(vec![b"COMMIT".to_vec()], plain.len())
        );
    }
}
