//! The conditions on a history, and on the store afterwards.

use idem::{ErrorAction, Idempotency, InFlight, RecordState};
use tokio::time::Instant;

use crate::{Event, Failure, KEYS, LEASE, LONGEST_DELAY, Plan, Seen, TTL, Value};

pub(crate) fn check(history: &[(Instant, Event)], plans: &[Plan]) -> Result<(), String> {
    for key in 0..KEYS {
        let mut running = 0;
        let mut recorded = None::<Instant>;
        for (place, (at, event)) in history.iter().enumerate() {
            match event {
                Event::Begins { call, key: of } if *of == key => {
                    running += 1;
                    if running > 1 {
                        return Err(format!(
                            "P1: the body of call {call} is the second on key {key}"
                        ));
                    }
                    if recorded.is_some_and(|since| at.duration_since(since) < TTL) {
                        return Err(format!(
                            "P2: the body of call {call} begins although key {key} is committed"
                        ));
                    }
                }
                Event::Stops { key: of } if *of == key => running -= 1,
                Event::Recorded { key: of } if *of == key => {
                    if recorded.replace(*at).is_some() {
                        return Err(format!("P3: key {key} is committed twice"));
                    }
                }
                Event::Forgotten { key: of } if *of == key => recorded = None,
                Event::Looked {
                    call,
                    key: of,
                    finds,
                } if *of == key => {
                    let begun = history.iter().position(
                        |(_, event)| matches!(event, Event::Looks { call: of } if of == call),
                    );
                    let meanwhile = &history[begun.unwrap_or(place)..place];
                    let is_changed = meanwhile.iter().any(|(_, event)| matches!(event, Event::Recorded { key: of } | Event::Forgotten { key: of } if *of == key));
                    if *finds != recorded.is_some() && !is_changed {
                        return Err(format!(
                            "P2: the lookup {call} finds an outcome: {finds}, which is not so"
                        ));
                    }
                }
                Event::Returned { call, text }
                    if plans[*call].key == key && text.starts_with("replay") =>
                {
                    if recorded.is_none()
                        && !history
                            .iter()
                            .any(|(_, event)| matches!(event, Event::Forgotten { .. }))
                    {
                        return Err(format!("P2: call {call} replays what is not recorded"));
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// When all is quiet: what succeeded last is recorded, and no key is locked out.
pub(crate) async fn afterwards(inner: &Seen, history: &[(Instant, Event)]) -> Result<(), String> {
    // A renewal may have been late by as much as a fault delays it.
    tokio::time::sleep(LEASE * 2 + LONGEST_DELAY).await;
    for key in 0..KEYS {
        let quiet = Idempotency::builder(inner.clone())
            .ttl(TTL)
            .lease(LEASE)
            .build();
        let state = quiet
            .operation("op")
            .key(&key)
            .inspect()
            .await
            .unwrap()
            .map(|info| info.state);
        // A late owner may be refused while a claim that is undone later is carried out.
        let is_excused = history
            .iter()
            .any(|(_, event)| matches!(event, Event::Forgotten { key: of } | Event::Refused { key: of } if *of == key));
        // The last body, if it ended, and its caller did not learn that the lease was lost.
        let last = history.iter().rev().find_map(|(_, event)| match event {
            Event::Begins { key: of, .. } if *of == key => Some(None),
            Event::Succeeds { call, key: of } if *of == key => Some(Some(*call)),
            _ => None,
        });
        if let Some(Some(call)) = last
            && !is_excused
            && state != Some(RecordState::Committed)
        {
            return Err(format!(
                "P9: call {call} was the last body on key {key} and is not recorded: {state:?}"
            ));
        }
        if state == Some(RecordState::InFlight) {
            return Err(format!(
                "P10: key {key} is locked two leases after all is over"
            ));
        }
        let last: Result<_, Failure> = quiet
            .operation("op")
            .key(&key)
            .in_flight(InFlight::Reject)
            .errors(|_: &Failure| ErrorAction::Keep)
            .run(|| async {
                Ok(Value {
                    call: 1000,
                    fingerprint: None,
                })
            })
            .await;
        match last {
            Ok(_) | Err(Failure::Declined) => {}
            Err(error) => {
                return Err(format!(
                    "P10: key {key} does not answer: {error:?} {state:?}"
                ));
            }
        }
    }
    Ok(())
}
