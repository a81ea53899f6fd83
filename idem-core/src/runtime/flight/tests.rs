//! The promises of flights, seen from their calls.

use std::pin::pin;

use futures_util::FutureExt as _;

use super::state::Answered;
use super::*;
use crate::encoding::key::Key;
use crate::error::{StoreError, StoreErrorKind};
use crate::lease::term::Term;
use crate::record::Owner;
use crate::runtime::rejected::{Held, Rejected};

const HOUR: Duration = Duration::from_secs(3600);

fn id(key: u64) -> RecordId {
    RecordId::new("orders", &Key::encode(&key).unwrap()).unwrap()
}

fn seat(flights: &Arc<Flights>, key: u64) -> FlightSeat {
    match flights.join(&id(key), None) {
        Joined::First(seat) | Joined::Behind(seat) => seat,
    }
}

fn counts(flights: &Flights) -> Vec<usize> {
    flights
        .shards
        .iter()
        .map(|shard| shard.lock().unwrap().len())
        .collect()
}

#[tokio::test]
async fn a_flight_is_there_until_the_last_of_its_calls_leaves() {
    let flights = Arc::new(Flights::new());
    let mut seats: Vec<_> = (0..3).map(|_| seat(&flights, 1)).collect();
    while !seats.is_empty() {
        assert_eq!(counts(&flights).iter().sum::<usize>(), 1);
        seats.remove(0);
    }
    assert_eq!(
        counts(&flights).iter().sum::<usize>(),
        0,
        "a key that nobody is busy with takes no memory"
    );
    assert!(matches!(flights.join(&id(1), None), Joined::First(_)));
}

#[tokio::test]
async fn keys_are_spread_over_the_locks() {
    let flights = Arc::new(Flights::new());
    let _seats: Vec<_> = (0..1_000).map(|key| seat(&flights, key)).collect();
    let used = counts(&flights)
        .into_iter()
        .filter(|count| *count > 0)
        .count();
    assert!(used > SHARDS / 2, "{used} of {SHARDS}");
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_commit_was_sent_speaks_for_a_moment_and_only_for_calls_that_came_before() {
    let flights = Arc::new(Flights::new());
    let now = clock::now();
    let deadline = Some(clock::after(clock::now(), HOUR));
    let mut owner = seat(&flights, 1);
    owner.become_owner(
        None,
        Arc::new(Term::new(id(1), Owner::generate(), 1, (HOUR, HOUR), now)),
    );
    let mut before = seat(&flights, 1);
    owner.sending_step();
    let Err(patience) = before.look(None, deadline) else {
        panic!("the answer is on its way")
    };
    assert_eq!(patience.until, now + PATIENCE);
    let mut after = seat(&flights, 1);
    assert!(matches!(after.look(None, deadline), Ok(FlightStep::Ask)));
    drop(after);
    tokio::time::advance(PATIENCE).await;
    assert!(matches!(before.look(None, deadline), Ok(FlightStep::Ask)));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_goes_on_for_an_answer_that_was_asked_for_after_it_came_and_for_no_older_one()
 {
    let flights = Arc::new(Flights::new());
    let deadline = Some(clock::after(clock::now(), HOUR));
    let mut asks = seat(&flights, 1);
    asks.claim_answered(None, Some(Rejected::InFlight(Held::new(1, HOUR))));
    let mut waits = seat(&flights, 1);
    assert!(matches!(
        waits.look(None, deadline),
        Ok(FlightStep::Wait(Held { attempt: 1, .. }))
    ));
    assert!(!waits.has_answer());
    for (message, is_new) in [(waits.joined, false), (waits.joined + 1, true)] {
        waits.flight.lock().answer = Some(Answered {
            message,
            fingerprint: None,
            shared: Some(Rejected::Done),
        });
        assert_eq!(waits.has_answer(), is_new);
    }
}

#[tokio::test(start_paused = true)]
async fn that_the_store_gave_no_answer_is_for_all_that_are_here_and_for_none_that_come_later() {
    use StoreErrorKind::{Refused, Timeout, Unavailable};
    for (kind, is_for_all) in [(Timeout, true), (Unavailable, true), (Refused, false)] {
        let flights = Arc::new(Flights::new());
        let mut asks = seat(&flights, 1);
        let mut here = seat(&flights, 1);
        asks.claim_answered(None, Some(Rejected::Store(StoreError::new(kind, ""))));
        let mut later = seat(&flights, 1);
        assert!(matches!(later.look(None, None), Ok(FlightStep::Ask)));
        drop(later);
        assert_eq!(
            matches!(here.look(None, None), Ok(FlightStep::Answer(_))),
            is_for_all,
            "{kind:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_call_did_for_the_others_is_taken_over_at_once_when_it_goes_away() {
    let now = clock::now();
    let deadline = Some(clock::after(clock::now(), HOUR));
    for role in [Role::Asks, Role::Waits, Role::Owns] {
        let flights = Arc::new(Flights::new());
        let mut one = seat(&flights, 1);
        match role {
            Role::Owns => one.become_owner(
                None,
                Arc::new(Term::new(id(1), Owner::generate(), 1, (HOUR, HOUR), now)),
            ),
            Role::Waits => {
                one.claim_answered(None, Some(Rejected::InFlight(Held::new(1, HOUR))));
                assert!(matches!(one.look(None, deadline), Ok(FlightStep::Wait(_))));
            }
            Role::Asks | Role::None => {}
        }
        let mut other = seat(&flights, 1);
        {
            let mut turn = pin!(other.turn(None, deadline));
            assert!(turn.as_mut().now_or_never().is_none());
            drop(one);
            let (turn, has_waited, _) = turn.await;
            assert!(has_waited && matches!(turn, FlightStep::Ask | FlightStep::Wait(_)));
        }
        assert_eq!(clock::now(), now, "nothing was waited for");
    }
}
