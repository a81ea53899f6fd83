use tokio::time::Instant;

use super::submission::{Flaw, Submission};
use super::throttle::Throttle;
use super::*;
use crate::adapter::engine::{Admission, Rejected};
use crate::{Error, Idempotency, MemoryStore};

fn subject(text: &str) -> Subject {
    Subject::encode(text).unwrap()
}

fn token() -> Token {
    Token::from_random(
        [7; RANDOM],
        Duration::from_secs(1_800),
        "orders.submit",
        &subject("ada"),
    )
}

#[test]
fn a_token_reads_back_as_it_was_printed_and_changed_in_any_bit_it_is_none() {
    let text = token().to_string();
    assert_eq!(text.len(), 36);
    assert!(
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    );
    assert_eq!(text.parse(), Ok(token()));
    for bit in 0..LEN * 8 {
        let mut bytes = token().0;
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(
            BASE64.encode(bytes).parse::<Token>(),
            Err(InvalidToken(())),
            "bit {bit}"
        );
    }
    for other in [
        "",
        "x",
        &text[1..],
        &format!("{text}A"),
        &text.replace('B', "+"),
        &"é".repeat(18),
    ] {
        assert!(other.parse::<Token>().is_err(), "{other}");
    }
}

#[test]
fn a_token_is_written_whole_where_it_is_sent_and_not_where_it_is_logged() {
    let token = token();
    let text = token.to_string();
    assert_eq!(
        serde_json::to_string(&token).unwrap(),
        format!("\"{text}\"")
    );
    assert_eq!(
        serde_json::from_str::<Token>(&format!("\"{text}\"")).unwrap(),
        token
    );
    assert_eq!(
        format!("{token:?}"),
        format!("Token({}\u{2026})", &text[..4])
    );
    let refused = serde_json::from_str::<Token>("\"secret-that-is-no-token\"")
        .unwrap_err()
        .to_string();
    assert!(!refused.contains("secret"), "{refused}");
}

#[test]
fn a_token_leads_to_its_record_for_its_operation_and_subject_alone() {
    let of =
        |operation: &str, subject: &str| Submission::find(operation, &token(), subject).unwrap();
    let (record, right) = of("orders.submit", "ada");
    assert_eq!(right.flaw, None);
    for (operation, subject) in [
        ("orders.submit", "grace"),
        ("orders.cancel", "ada"),
        ("orders.submit", "ad"),
    ] {
        let (other, wrong) = of(operation, subject);
        assert_eq!(wrong.flaw, Some(Flaw::OfAnother));
        assert_ne!(other.key(), record.key());
    }
    // Made up by an expert: well-formed, but the key of no record.
    let made_up = Token::from_random(
        [8; RANDOM],
        Duration::from_secs(1_800),
        "orders.submit",
        &subject("ada"),
    );
    let (other, unknown) = Submission::find("orders.submit", &made_up, "ada").unwrap();
    assert_eq!(unknown.flaw, None);
    assert_ne!(other.key(), record.key());
}

#[test]
fn a_token_says_for_how_long_it_is_and_with_another_time_it_is_another() {
    let subject = subject("ada");
    let with = |ttl| Token::from_random([7; RANDOM], ttl, "orders.submit", &subject);
    for (ttl, said) in [
        (Duration::from_millis(1), 1),
        (Duration::from_secs(1_800), 1_800),
        (MAX_LENGTH, 3_153_600_000),
    ] {
        assert_eq!(with(ttl).ttl_secs(), said);
    }
    let key = |ttl| with(ttl).bound("orders.submit", &subject).key;
    assert_ne!(key(Duration::from_secs(1)), key(Duration::from_secs(2)));
}

#[test]
fn a_token_of_a_time_that_none_is_issued_for_is_none() {
    for seconds in [0, 3_153_600_001, u32::MAX] {
        let mut bytes = token().0;
        bytes[RANDOM..BOUND].copy_from_slice(&seconds.to_be_bytes());
        let check = check(&bytes);
        bytes[CHECKED..].copy_from_slice(&check);
        assert!(BASE64.encode(bytes).parse::<Token>().is_err(), "{seconds}");
    }
}

#[test]
fn the_key_of_a_token_is_no_key_that_a_value_can_have_and_says_nothing_of_the_token() {
    let (record, _) = Submission::find("orders.submit", &token(), "ada").unwrap();
    assert_eq!(record.key().len(), 24);
    let as_value = RecordId::encode("orders.submit", record.key()).unwrap();
    assert_ne!(as_value, record);
    assert!(!record.key().contains(&token().to_string()[..4]));
}

#[test]
fn what_is_no_token_at_all_is_forged_and_without_a_subject_there_is_nothing_to_look_up() {
    let none: Option<String> = None;
    for text in [None, Some(String::new()), Some("x".repeat(36))] {
        assert_eq!(
            Submission::find("o", &text, "ada").unwrap().1.flaw,
            Some(Flaw::Forged),
            "{text:?}"
        );
    }
    assert!(Submission::find("o", &token(), &none).is_none());
    assert!(Submission::find("o", &token(), "").is_none());
}

/// Forms stay open during a deployment, so a change needs a new version of the token.
#[test]
fn the_form_of_tokens_and_of_their_keys_is_pinned() {
    assert_eq!(token().to_string(), "BwcHBwcHBwcHBwcHBwcHBwAABwiH_7QXryVF");
    assert_eq!(
        Submission::find("orders.submit", &token(), "ada")
            .unwrap()
            .0
            .key(),
        "~t1mJ9jST2EP_cB3ohgLptUQ"
    );
}

#[derive(Debug)]
struct OfAnotherLayer;

impl fmt::Display for OfAnotherLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another layer")
    }
}

impl Admission for OfAnotherLayer {
    fn admit(&self, _: &RecordId, _: Instant) -> Result<(), Rejected> {
        Ok(())
    }
    fn not_issued(&self, _: &RecordId, _: bool) -> Rejected {
        Rejected::Done
    }
    fn by_hand(&self) -> Arc<dyn Admission> {
        Arc::new(Self)
    }
}

#[test]
fn a_token_replaces_another_token_and_is_refused_beside_the_admission_of_another_layer() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let mut call = idempotency.operation("orders.submit");
    call = call.token(&token(), "ada").token(&token(), "grace");
    assert!(call.draft.problem.is_none());
    call.draft.admission = Some(Arc::new(OfAnotherLayer));
    let problem = call.token(&token(), "ada").draft.problem;
    assert!(matches!(problem, Some(Error::Config { .. })), "{problem:?}");
}

#[test]
fn a_runtime_keeps_one_value_of_each_layer() {
    let mut builder = Idempotency::builder(MemoryStore::new()).limit_token_failures(1, "1m");
    builder.share(7_u32);
    let runtime = builder
        .limit_token_failures(2, "1m")
        .build()
        .runtime
        .unwrap();
    assert_eq!(runtime.shared::<u32>().as_deref(), Some(&7));
    let throttle = format!("{:?}", runtime.shared::<Throttle>());
    assert!(throttle.contains("max: 2"), "{throttle}");
}
