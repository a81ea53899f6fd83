//! Every record reads back as it was written, and nothing else is read as one.

use super::*;

const TRACE: &str = "t00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[expect(clippy::too_many_lines, reason = "a row for each record")]
fn samples() -> Vec<Record> {
    let print = Fingerprint::of("x").unwrap();
    let held = |fingerprint| InFlight {
        owner: Owner::from_bytes([7; 16]),
        attempt: 3,
        origin: Origin::Abandoned,
        lease: Duration::from_secs(30),
        hold: Duration::from_hours(24),
        fingerprint,
        questions: 0,
        took_over: None,
        metadata: None,
        run: None,
    };
    let run = Some(Owner::from_bytes([8; 16]));
    let said = Metadata::parse(&format!("{TRACE},nUmVjZWlwdA")).map(Arc::new);
    let traced = |held: InFlight| held.with_metadata(said.clone());
    let over = |questions, over: InFlight| InFlight {
        questions,
        took_over: Some(Box::new(InFlight {
            lease: Duration::ZERO,
            ..over
        })),
        ..held(None)
    };
    let outcome = |payload: &'static [u8]| Encoded {
        is_error: false,
        codec: CodecId::JSON,
        payload: Bytes::from_static(payload),
        metadata: None,
    };
    let audit = crate::record::Audit::new("jane", "ticket 7", Duration::from_secs(60));
    let metadata = Some(Arc::new(Metadata {
        version: Some(2),
        audit,
        ..Metadata::default()
    }));
    vec![
        Record::Issued {
            grace: Duration::ZERO,
        },
        Record::InFlight(held(None)),
        Record::InFlight(held(Some(print))),
        Record::Released {
            attempt: u64::MAX,
            questions: 0,
            run: None,
        },
        Record::Committed {
            attempt: 1,
            fingerprint: None,
            outcome: outcome(b"{\"a\":\"b c\"}"),
        },
        Record::Committed {
            attempt: 1,
            fingerprint: Some(print),
            outcome: outcome(b""),
        },
        Record::Committed {
            attempt: 1,
            fingerprint: None,
            outcome: outcome(&[0, 255, b' ', b'\n']),
        },
        Record::Done {
            attempt: 2,
            fingerprint: None,
        },
        Record::Done {
            attempt: 2,
            fingerprint: Some(print),
        },
        Record::Committed {
            attempt: 3,
            fingerprint: None,
            outcome: Encoded {
                is_error: true,
                ..outcome(b"\"no\"")
            },
        },
        Record::Issued {
            grace: Duration::from_hours(1),
        },
        Record::InFlight(InFlight {
            questions: 2,
            ..held(Some(print))
        }),
        Record::InFlight(over(0, held(Some(print)))),
        Record::InFlight(over(1, over(1, over(0, held(None))))),
        Record::Released {
            attempt: 3,
            questions: 1,
            run: None,
        },
        Record::Committed {
            attempt: 1,
            fingerprint: Some(print),
            outcome: Encoded {
                metadata: metadata.clone(),
                ..outcome(b"{}")
            },
        },
        Record::Committed {
            attempt: 1,
            fingerprint: None,
            outcome: Encoded {
                is_error: true,
                metadata,
                ..outcome(b"x y")
            },
        },
        Record::InFlight(traced(held(Some(print)))),
        Record::InFlight(traced(over(1, held(None)))),
        Record::InFlight(over(0, over(2, traced(held(Some(print)))))),
        Record::Released {
            attempt: 3,
            questions: 0,
            run,
        },
        Record::InFlight(held(None).with_run(run)),
        Record::InFlight(over(1, over(0, traced(held(Some(print))).with_run(run)))),
    ]
}

fn read(text: &[u8]) -> Result<Parsed, WireError> {
    decode(&Bytes::copy_from_slice(text))
}

#[test]
fn every_state_reads_back_as_it_was_written() {
    for record in samples() {
        assert_eq!(read(&encode(&record)), Ok(Parsed::Record(record)));
    }
    let print = Fingerprint::of("x").ok();
    assert_eq!(
        read(&encode_aside(4, print)),
        Ok(Parsed::Aside {
            attempt: 4,
            fingerprint: print
        })
    );
}

#[test]
fn parts_of_milliseconds_are_cut_off_and_the_record_is_read() {
    for (micros, millis) in [(300, 0), (1500, 1)] {
        let written = Record::Issued {
            grace: Duration::from_micros(micros),
        };
        let expected = Record::Issued {
            grace: Duration::from_millis(millis),
        };
        assert_eq!(read(&encode(&written)), Ok(Parsed::Record(expected)));
    }
}

#[test]
fn a_record_cut_short_anywhere_is_damaged_never_another_record() {
    for record in samples() {
        let whole = encode(&record);
        for end in 2..whole.len() {
            assert_eq!(
                read(&whole[..end]),
                Err(WireError::Damaged),
                "{:?}",
                String::from_utf8_lossy(&whole[..end])
            );
        }
        assert_eq!(
            read(&[whole.as_slice(), b"x"].concat()),
            Err(WireError::Damaged)
        );
    }
}

#[test]
fn a_committed_record_with_any_byte_changed_is_not_read() {
    for record in samples()
        .into_iter()
        .filter(|record| matches!(record, Record::Committed { .. }))
    {
        let whole = encode(&record);
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut changed = whole.clone();
                changed[at] ^= 1 << bit;
                assert_ne!(read(&changed), Ok(Parsed::Record(record.clone())));
                assert!(
                    read(&changed).is_err(),
                    "{:?}",
                    String::from_utf8_lossy(&changed)
                );
            }
        }
    }
}

#[test]
fn foreign_values_and_other_versions_are_told_apart() {
    for foreign in ["", "hello", "{\"a\":1}", "i", "idem", "1"] {
        assert_eq!(
            read(foreign.as_bytes()),
            Err(WireError::Foreign),
            "{foreign}"
        );
    }
    for later in ["i2c 1 j - aaaaaa {}", "i3r.", "i2i.", "i4c ", "i9"] {
        assert_eq!(read(later.as_bytes()), Err(WireError::Version), "{later}");
    }
    let group = "BwcHBwcHBwcHBwcHBwcHBwa 3 0 2 - 1";
    let chain = |length| format!("i2f{}.", [group].repeat(length).join("<"));
    assert!(read(chain(MOST_TAKEN_OVER + 1).as_bytes()).is_ok());
    assert_eq!(
        read(chain(MOST_TAKEN_OVER + 2).as_bytes()),
        Err(WireError::Damaged)
    );
    for damaged in [
        "i1",
        "i1x 1.",
        "i1r +1.",
        "i1r 1 2.",
        "i1r.",
        "i1i 0.",
        "i1i x.",
        "i1i 1 2.",
        "i1i",
        "i1d 1.",
        "i1r 1.w",
        "i1f.",
        "i2f.",
        "i2r 1.",
        "i2r 1 0.",
        "i2r 1 1",
        "i2fBwcHBwcHBwcHBwcHBwcHBwa 3 1 2 - 0.",
        "i2fBwcHBwcHBwcHBwcHBwcHBwa 3 1 2 - 1<.",
        "i1fBwcHBwcHBwcHBwcHBwcHBwa 3 1 2 - 1.",
        "i2fBwcHBwcHBwcHBwcHBwcHBwa 3 1 2 - 1 1.",
        "i3f.",
        "i3fBwcHBwcHBwcHBwcHBwcHBwa 3 1 2 - 1.",
        "i3fBwcHBwcHBwcHBwcHBwcHBwa 3 1 2 - 1 00-1-2-01.",
        &format!("i2fBwcHBwcHBwcHBwcHBwcHBwa 3 1 2 - 1 {TRACE}."),
        &format!("i3fBwcHBwcHBwcHBwcHBwcHBwa 3 1 2 - 1 {TRACE} 1."),
        "i3fBwcHBwcHBwcHBwcHBwcHBwa 3 1 2 - 1 rCAgICAgICAgICAgICAgICA.",
        "i4r 1 0.",
        "i4r 1 0 CAgICAgICAgICAgICAgICA.",
        "i4r 1 0 rCAgICAgICAgICAgICAgIC.",
        "i4fBwcHBwcHBwcHBwcHBwcHBwa 3 1 2 - 1.",
        "i4fBwcHBwcHBwcHBwcHBwcHBwa 3 1 2 - 1 r.",
        &format!("i4fBwcHBwcHBwcHBwcHBwcHBwa 3 1 2 - 1 rCAgICAgICAgICAgICAgICA {TRACE}."),
    ] {
        assert_eq!(
            read(damaged.as_bytes()),
            Err(WireError::Damaged),
            "{damaged}"
        );
    }
}

#[test]
fn the_mark_of_waiters_is_part_of_no_field() {
    for held in [
        &samples()[2],
        &samples()[13],
        &samples()[18],
        &samples()[21],
    ] {
        let held = encode(held);
        let waited = [held.as_slice(), &[WAITED]].concat();
        assert_eq!(read(&waited), read(&held));
        assert_eq!(without_waited(&waited), held);
        assert_eq!(without_waited(&held), held);
        assert_eq!(
            waited[2..25],
            owner_prefix(Owner::from_bytes([7; 16])).as_bytes()[2..]
        );
    }
}

/// Records outlive deployments: a change of these texts needs a new version of the format.
#[test]
fn the_format_is_pinned() {
    let texts: Vec<_> = samples()
        .iter()
        .map(|record| String::from_utf8_lossy(&encode(record)).into_owned())
        .collect();
    assert_eq!(texts[0], "i1i.");
    assert_eq!(texts[10], "i1i 3600000.");
    assert_eq!(texts[1], "i1fBwcHBwcHBwcHBwcHBwcHBwa 3 30000 86400000 -.");
    assert_eq!(texts[3], "i1r 18446744073709551615.");
    assert_eq!(texts[4], "i1c 1 j - n1n1HA {\"a\":\"b c\"}");
    assert_eq!(texts[7], "i1d 2 -.");
    assert_eq!(texts[9], "i1e 3 j - lZUZQw \"no\"");
    assert_eq!(
        texts[18],
        format!(
            "i3fBwcHBwcHBwcHBwcHBwcHBwa 3 30000 86400000 - 1 {TRACE},nUmVjZWlwdA\
             <BwcHBwcHBwcHBwcHBwcHBwa 3 0 86400000 - 0."
        )
    );
}
