use super::*;
use crate::outcome::codec::{AnyCodec, TypeLabel};
use crate::record::{Encoded, Metadata, RecordId};

fn ring(writes: &str, reads: &[&str]) -> KeyRing {
    let key = |id: &str| EncryptionKey::new([id.as_bytes()[0]; 32]);
    let ring = KeyRing::new(writes, key(writes)).unwrap();
    reads
        .iter()
        .fold(ring, |ring, id| ring.reads(*id, key(id)).unwrap())
}

fn codec(writes: &str, reads: &[&str]) -> AnyCodec {
    AnyCodec::Other(Arc::new(EncryptedCodec::new(ring(writes, reads))))
}

fn id(operation: &str, key: &str) -> RecordId {
    RecordId::new(operation, &crate::Key::encode(key).unwrap()).unwrap()
}

fn encode(codec: &AnyCodec, text: &str) -> Encoded {
    encode_version(codec, text, 1)
}

fn encode_version(codec: &AnyCodec, text: &str, version: u32) -> Encoded {
    let label = TypeLabel {
        version,
        ..TypeLabel::default()
    };
    codec
        .encode(CodecContext::of_value(&id("orders", "o-1"), 3, label), text)
        .unwrap()
}

/// An outcome as one of another version, as somebody with access to the store can say.
fn as_version(outcome: &Encoded, version: Option<u32>) -> Encoded {
    let metadata = version.map(|version| {
        Arc::new(Metadata {
            version: Some(version),
            ..Metadata::default()
        })
    });
    Encoded {
        metadata,
        ..outcome.clone()
    }
}

/// What the form without a version was: written out, so that it stays readable whatever becomes
/// of the code above.
fn without_version(text: &str) -> Encoded {
    let mut sealed = b"\x01\x01a\x01j".to_vec();
    let mut aad = b"idem outcome 1".to_vec();
    for part in [&sealed[..], b"orders", b"o-1"] {
        aad.extend_from_slice(&(part.len() as u64).to_be_bytes());
        aad.extend_from_slice(part);
    }
    aad.extend_from_slice(&3_u64.to_be_bytes());
    aad.push(0);
    let json = serde_json::to_vec(text).unwrap();
    let cipher = cipher(&EncryptionKey::new([b'a'; 32]));
    let encrypted = cipher
        .encrypt(
            &XNonce::from([7; NONCE]),
            Payload {
                msg: &json,
                aad: &aad,
            },
        )
        .unwrap();
    sealed.extend_from_slice(&[7; NONCE]);
    sealed.extend_from_slice(&encrypted);
    Encoded {
        is_error: false,
        codec: EncryptedCodec::ID,
        payload: sealed.into(),
        metadata: None,
    }
}

fn decode(
    codec: &AnyCodec,
    (id, attempt): (&RecordId, u64),
    outcome: &Encoded,
) -> Result<String, String> {
    codec
        .decode(id, attempt, outcome)
        .map_err(|error| error.to_string())
}

fn mine(codec: &AnyCodec, outcome: &Encoded) -> Result<String, String> {
    decode(codec, (&id("orders", "o-1"), 3), outcome)
}

#[test]
fn an_outcome_comes_back_and_does_not_stand_in_the_store() {
    let codec = codec("a", &[]);
    let [one, two] = [encode(&codec, "jane"), encode(&codec, "jane")];
    assert_eq!(mine(&codec, &one), Ok("jane".to_owned()));
    assert!(
        !one.payload.windows(4).any(|part| part == b"jane"),
        "{:?}",
        one.payload
    );
    assert_ne!(one.payload, two.payload, "each has a nonce of its own");
}

#[test]
fn an_outcome_of_another_record_is_refused() {
    let codec = codec("a", &[]);
    let outcome = encode(&codec, "jane");
    let foreign = [
        id("orders", "o-2"),
        id("refunds", "o-1"),
        id("order", "so-1"),
    ];
    for (id, attempt) in foreign
        .iter()
        .map(|id| (id, 3))
        .chain([(&id("orders", "o-1"), 4)])
    {
        let refused = decode(&codec, (id, attempt), &outcome).unwrap_err();
        assert!(
            refused.contains("not encrypted for this record"),
            "{refused}"
        );
    }
    let as_error = Encoded {
        is_error: true,
        ..outcome
    };
    assert!(mine(&codec, &as_error).is_err(), "a value is no error");
}

#[test]
fn an_outcome_of_another_version_is_refused() {
    let codec = codec("a", &[]);
    let [first, second] = [1, 2].map(|version| encode_version(&codec, "jane", version));
    assert_eq!(first.metadata, None);
    assert_eq!(second.version(), 2);
    for (outcome, said) in [(&first, None), (&second, Some(2))] {
        assert_eq!(
            mine(&codec, &as_version(outcome, said)),
            Ok("jane".to_owned())
        );
    }
    for (outcome, said) in [(&first, Some(2)), (&second, None), (&second, Some(3))] {
        let refused = mine(&codec, &as_version(outcome, said)).unwrap_err();
        assert!(
            refused.contains("not encrypted for this record"),
            "{refused}"
        );
    }
}

#[test]
fn the_form_without_a_version_is_read_and_neither_form_is_taken_for_the_other() {
    let codec = codec("a", &[]);
    let [old, new] = [without_version("jane"), encode(&codec, "jane")];
    assert_eq!((old.payload[0], new.payload[0]), (1, 2));
    assert_eq!(mine(&codec, &old), Ok("jane".to_owned()));
    // The version of an old one is not bound.
    assert_eq!(
        mine(&codec, &as_version(&old, Some(2))),
        Ok("jane".to_owned())
    );
    for outcome in [old, new] {
        let mut bytes = outcome.payload.to_vec();
        bytes[0] ^= 3;
        let refused = mine(
            &codec,
            &Encoded {
                payload: bytes.into(),
                ..outcome
            },
        )
        .unwrap_err();
        assert!(
            refused.contains("not encrypted for this record"),
            "{refused}"
        );
    }
    let other = decode(&codec, (&id("orders", "o-2"), 3), &without_version("jane"));
    assert!(other.unwrap_err().contains("not encrypted for this record"));
}

#[test]
fn what_was_changed_or_cut_short_is_refused_wherever_that_was() {
    let codec = codec("a", &[]);
    let whole = encode(&codec, "jane");
    for at in 0..whole.payload.len() {
        let mut bytes = whole.payload.to_vec();
        bytes[at] ^= 1;
        assert!(
            mine(
                &codec,
                &Encoded {
                    payload: bytes.into(),
                    ..whole.clone()
                }
            )
            .is_err(),
            "byte {at} was changed"
        );
        let cut = whole.payload.slice(..at);
        assert!(
            mine(
                &codec,
                &Encoded {
                    payload: cut,
                    ..whole.clone()
                }
            )
            .is_err(),
            "cut at {at}"
        );
    }
}

#[test]
fn keys_rotate_while_processes_with_the_old_and_the_new_ones_run() {
    let [old, knows, writes, new] = [
        codec("a", &[]),
        codec("a", &["b"]),
        codec("b", &["a"]),
        codec("b", &[]),
    ];
    let by_a = encode(&knows, "jane");
    let by_b = encode(&writes, "jane");
    for codec in [&old, &knows, &writes] {
        assert_eq!(mine(codec, &by_a), Ok("jane".to_owned()));
    }
    for codec in [&knows, &writes, &new] {
        assert_eq!(mine(codec, &by_b), Ok("jane".to_owned()));
    }
    for (codec, outcome, key) in [(&old, &by_b, "`b`"), (&new, &by_a, "`a`")] {
        let refused = mine(codec, outcome).unwrap_err();
        assert!(
            refused.contains(key) && refused.contains("does not have"),
            "{refused}"
        );
    }
    // Another secret under the same id.
    let other = KeyRing::new("a", EncryptionKey::new([0; 32])).unwrap();
    let other = AnyCodec::Other(Arc::new(EncryptedCodec::new(other)));
    assert!(
        mine(&other, &by_a)
            .unwrap_err()
            .contains("as this runtime has it")
    );
}

/// A key for each customer, who is the first part of the key. `Err`: why there is none.
struct PerCustomer(Vec<(&'static str, Result<EncryptionKey, &'static str>)>);

impl EncryptionKeys for PerCustomer {
    fn current(&self, context: &CodecContext<'_>) -> Result<(String, EncryptionKey), CodecFailure> {
        let customer = context.first_key_part().ok_or("no customer")?;
        let key = self.find(&customer, context)?.ok_or("destroyed")?;
        Ok((customer.into_owned(), key))
    }

    fn find(
        &self,
        id: &str,
        context: &CodecContext<'_>,
    ) -> Result<Option<EncryptionKey>, CodecFailure> {
        assert_eq!(context.operation(), "orders");
        let found = self.0.iter().find(|(customer, _)| *customer == id);
        Ok(found.map(|(_, key)| key.clone()).transpose()?)
    }
}

#[test]
fn a_key_for_each_customer_is_found_by_the_context_and_erases_when_it_is_destroyed() {
    let all = |jane: Option<Result<EncryptionKey, &'static str>>| {
        let joe = ("joe", Ok(EncryptionKey::new([2; 32])));
        let jane = jane.map(|key| ("jane", key));
        let keys = PerCustomer(jane.into_iter().chain([joe]).collect());
        AnyCodec::Other(Arc::new(EncryptedCodec::new(keys)))
    };
    let [jane, joe] = ["jane", "joe"].map(|customer| {
        let key = crate::Key::encode(&(customer, 7)).unwrap();
        RecordId::new("orders", &key).unwrap()
    });
    let with_key = all(Some(Ok(EncryptionKey::new([1; 32]))));
    let label = TypeLabel::default();
    let of = |id| CodecContext::of_value(id, 3, label);
    let hers = with_key.encode(of(&jane), "hers").unwrap();
    let his = with_key.encode(of(&joe), "his").unwrap();
    assert_eq!(decode(&with_key, (&jane, 3), &hers), Ok("hers".to_owned()));
    let destroyed = all(None);
    assert_eq!(decode(&destroyed, (&joe, 3), &his), Ok("his".to_owned()));
    let refused = decode(&destroyed, (&jane, 3), &hers).unwrap_err();
    assert!(
        refused.contains("the key `jane`") && refused.contains("if the key was destroyed"),
        "{refused}"
    );
    let refused = destroyed.encode(of(&jane), "hers").unwrap_err().to_string();
    assert!(refused.ends_with("destroyed"), "{refused}");
    // The operator sees the error of the source of keys.
    let away = all(Some(Err("the secret manager is away")));
    let refused = decode(&away, (&jane, 3), &hers).unwrap_err();
    assert!(refused.ends_with("the secret manager is away"), "{refused}");
    // Of a key that is stored as a digest, no customer is known.
    let long = id("orders", &"jane".repeat(100));
    let refused = with_key.encode(of(&long), "hers").unwrap_err().to_string();
    assert!(refused.ends_with("no customer"), "{refused}");
}

#[test]
fn outcomes_from_before_the_encryption_are_read_only_where_that_is_said() {
    let plain = encode(&AnyCodec::Json, "jane");
    assert!(mine(&codec("a", &[]), &plain).is_err());
    let codec = AnyCodec::Other(Arc::new(
        EncryptedCodec::new(ring("a", &[])).reads_unencrypted(),
    ));
    assert_eq!(mine(&codec, &plain), Ok("jane".to_owned()));
    assert!(mine(&AnyCodec::Json, &encode(&codec, "jane")).is_err());
}

#[test]
fn ids_of_keys_are_checked_and_secrets_are_not_printed() {
    for wrong in ["", "a b", "ä", &"x".repeat(65)] {
        assert!(
            KeyRing::new(wrong, EncryptionKey::generate().unwrap()).is_err(),
            "{wrong}"
        );
    }
    assert!(
        ring("a", &[])
            .reads("a", EncryptionKey::new([7; 32]))
            .is_err()
    );
    let shown = format!("{:?} {:?}", ring("a", &["b"]), EncryptionKey::new([7; 32]));
    assert_eq!(shown, r#"["a", "b"] EncryptionKey(..)"#);
}
