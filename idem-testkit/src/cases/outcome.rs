//! An outcome comes back byte for byte, whatever it is.

use std::sync::Arc;

use bytes::Bytes;
use idem_core::CodecId;
use idem_core::record::{Claimed, Encoded, Metadata, Ownership, RecordState};

use crate::bench::{Bench, LONG, claim, outcome};
use crate::check::{Verdict, broken, holds, same};
use crate::trial::{Trial, code};

pub(super) const TRIALS: &[Trial] = &[
    code("outcome::of_every_byte_is_kept", |t| {
        Box::pin(async move {
            let forth = (0..=255).collect::<Vec<u8>>();
            let back = forth.iter().rev().copied().collect::<Vec<u8>>();
            comes_back(t, "every byte", outcome(&[forth, back].concat())).await
        })
    }),
    code("outcome::of_no_bytes_is_an_outcome", |t| {
        Box::pin(comes_back(t, "no bytes", outcome(b"")))
    }),
    code("outcome::of_one_mebibyte_is_kept", |t| {
        Box::pin(async move {
            let payload = (0..1_u32 << 20)
                .map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0])
                .collect::<Vec<u8>>();
            comes_back(t, "one mebibyte", outcome(&payload)).await
        })
    }),
    code("outcome::of_unit_zero_empty_and_none_is_an_outcome", |t| {
        Box::pin(async move {
            for json in ["null", "0", "\"\"", "[]", "{}", "false", "\"null\""] {
                comes_back(t, json, outcome(json.as_bytes())).await?;
            }
            Ok(())
        })
    }),
    code("outcome::that_looks_like_a_record_is_kept", |t| {
        Box::pin(async move {
            for text in [
                "i1r 1.", "i1d 1 -.", "i1i.", ".", ".w", " ", ":", "+OK\r\n", "$-1\r\n", "*0\r\n",
            ] {
                comes_back(t, &format!("{text:?}"), outcome(text.as_bytes())).await?;
            }
            Ok(())
        })
    }),
    code("outcome::of_line_ends_and_spaces_is_kept", |t| {
        Box::pin(async move {
            for text in ["\n", "\r\n", " a", "a ", "a\n", "\0", "a\0b", "\u{feff}a"] {
                comes_back(t, &format!("{text:?}"), outcome(text.as_bytes())).await?;
            }
            Ok(())
        })
    }),
    code("outcome::keeps_the_name_of_its_codec", |t| {
        Box::pin(async move {
            for name in ["a", "cbor", "msgpack2"] {
                let codec = CodecId::parse(name.as_bytes())
                    .ok_or_else(|| broken("a mistake in the suite"))?;
                comes_back(
                    t,
                    name,
                    Encoded::new(codec, Bytes::from_static(b"\xa1\x00")),
                )
                .await?;
            }
            Ok(())
        })
    }),
    code("outcome::that_is_an_error_stays_one", |t| {
        Box::pin(async move {
            for is_error in [true, false] {
                let wanted = outcome(b"{\"declined\":51}").with_is_error(is_error);
                comes_back(
                    t,
                    if is_error {
                        "an error that is kept"
                    } else {
                        "a value"
                    },
                    wanted.clone(),
                )
                .await?;
                let given = t.given(RecordState::InFlight).await?;
                let commit = given.commit.with_outcome(Some(wanted));
                same(
                    "the commit",
                    t.store.commit(&commit).await?,
                    Ownership::Held,
                )?;
                let info = t
                    .store
                    .inspect(&given.id)
                    .await?
                    .ok_or_else(|| broken("a committed record is not found"))?;
                same(
                    "an inspection",
                    (info.state, info.is_error),
                    (RecordState::Committed, is_error),
                )?;
            }
            Ok(())
        })
    }),
    code("outcome::keeps_what_else_is_known_of_it", |t| {
        Box::pin(async move {
            let longest = format!(
                "v2,a{};{};{}",
                LONG.as_millis(),
                "d3d3".repeat(32),
                "eXl5".repeat(128)
            );
            let trace = "t00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
            for text in [
                "v2",
                trace,
                &format!("v4294967295,{trace},a60000;amFuZQ;"),
                &longest,
            ] {
                let metadata =
                    Metadata::parse(text).ok_or_else(|| broken("a mistake in the suite"))?;
                let has_audit = metadata.audit.is_some();
                let metadata = Some(Arc::new(metadata));
                for is_error in [false, true] {
                    let wanted = outcome(b"{\"number\":1}")
                        .with_is_error(is_error)
                        .with_metadata(metadata.clone());
                    comes_back(t, text, wanted.clone()).await?;
                    let given = t.given(RecordState::InFlight).await?;
                    let commit = given
                        .commit
                        .with_outcome(Some(wanted))
                        .with_ttl(LONG)
                        .with_remember(LONG * 2);
                    same(
                        "the commit",
                        t.store.commit(&commit).await?,
                        Ownership::Held,
                    )?;
                    let info = t
                        .store
                        .inspect(&given.id)
                        .await?
                        .ok_or_else(|| broken("a committed record is not found"))?;
                    same(
                        "the metadata",
                        info.outcome.and_then(|outcome| outcome.metadata),
                        metadata.clone(),
                    )?;
                    holds(
                        "the age of the audit counts from the commit",
                        info.audit_age.is_none_or(|age| age <= LONG / 2)
                            && info.audit_age.is_some() == has_audit,
                    )?;
                }
            }
            Ok(())
        })
    }),
    code("outcome::is_replayed_again_and_again", |t| {
        Box::pin(async move {
            for given in t.both_committed(None).await? {
                let first = t.store.claim(&claim(&given.id)).await?;
                for _ in 0..10 {
                    same(
                        "a replay",
                        t.store.claim(&claim(&given.id)).await?,
                        first.clone(),
                    )?;
                }
                holds(
                    "a committed record is replayed",
                    matches!(first, Claimed::Committed { .. }),
                )?;
            }
            Ok(())
        })
    }),
    code("outcome::is_replayed_to_another_handle", |t| {
        Box::pin(async move {
            for given in t.both_committed(None).await? {
                let outcome = given
                    .commit
                    .outcome
                    .ok_or_else(|| broken("no outcome: a mistake in the suite"))?;
                let answer = t.second().await?.claim(&claim(&given.id)).await?;
                same(
                    "a replay to another handle",
                    answer,
                    Claimed::Committed {
                        attempt: 1,
                        outcome,
                    },
                )?;
            }
            Ok(())
        })
    }),
];

/// Commits an outcome, and finds it, where the outcome is kept for as long as the record, and where
/// the record remembers longer.
async fn comes_back(t: &Bench, what: &str, wanted: Encoded) -> Verdict {
    for remember in [LONG, LONG * 2] {
        let given = t.given(RecordState::InFlight).await?;
        let commit = given
            .commit
            .with_outcome(Some(wanted.clone()))
            .with_remember(remember);
        same(
            "the commit",
            t.store.commit(&commit).await?,
            Ownership::Held,
        )?;
        match t.store.claim(&claim(&given.id)).await? {
            Claimed::Committed { outcome, .. } if outcome == wanted => {}
            Claimed::Committed { outcome, .. } => {
                let at = outcome
                    .payload
                    .iter()
                    .zip(&wanted.payload)
                    .take_while(|(one, two)| one == two)
                    .count();
                let message = format!(
                    "{what}: wanted {wanted:?}, got {outcome:?}, which differs from byte {at} on"
                );
                return Err(broken(message));
            }
            other => return Err(broken(format!("{what}: wanted Committed, got {other:?}"))),
        }
        same(
            &format!("{what}, the same commit again"),
            t.store.commit(&commit).await?,
            Ownership::Held,
        )?;
    }
    Ok(())
}
