//! The promises as properties of states, and what must be reachable so that they are not kept by
//! doing nothing.

use idem_core::record::Origin;
use stateright::Property;

use crate::caller::{Caller, Id, Phase, Reply, Wire};
use crate::life::Life;
use crate::promise::Promise;
use crate::slot::{Entry, Slot};
use crate::state::State;

impl Promise {
    /// All that the model checks.
    pub const ALL: &[Self] = &[
        Self::P1,
        Self::P2,
        Self::P3,
        Self::P5,
        Self::P6,
        Self::P7,
        Self::P8,
        Self::P9,
        Self::P10,
        Self::P13,
        Self::Run,
    ];

    /// Its property's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::P1 => "P1: no body is polled once another has begun",
            Self::P2 => "P2: after a commit no body begins, and its outcome is replayed",
            Self::P3 => "P3: who is not the owner changes nothing",
            Self::P5 => "P5: after a lease without news the key is free, and attempts grow",
            Self::P6 => "P6: what is abandoned stands abandoned",
            Self::P7 => "P7: another fingerprint is a mismatch, before any conflict",
            Self::P8 => "P8: a cut body's key is not released",
            Self::P9 => "P9: a body's value is committed, not released",
            Self::P10 => "P10: a claim that came to nothing leaves nothing",
            Self::P13 => "P13: a token is claimed only if it was issued",
            Self::Run => "a run goes on until an outcome, a removal or an expiry",
        }
    }

    fn is_kept(self, life: &Life, state: &State) -> bool {
        !state.seen.saw_broken(self)
            && match self {
                Self::P5 => is_free_after_a_lease(life, state),
                Self::P10 => is_held_by_somebody(state),
                Self::P13 => !life.bounds.issued || !came_from(state, Origin::Nothing),
                _ => true,
            }
    }
}

/// All properties.
pub(crate) fn all() -> Vec<Property<Life>> {
    let mut all: Vec<_> = Promise::ALL
        .iter()
        .map(|promise| Property::always(promise.name(), kept(*promise)))
        .collect();
    all.extend(
        SOMETIMES
            .iter()
            .map(|(name, happens)| Property::sometimes(name, *happens)),
    );
    all
}

type Condition = fn(&Life, &State) -> bool;

fn kept(promise: Promise) -> Condition {
    match promise {
        Promise::P1 => |life, state| Promise::P1.is_kept(life, state),
        Promise::P2 => |life, state| Promise::P2.is_kept(life, state),
        Promise::P3 => |life, state| Promise::P3.is_kept(life, state),
        Promise::P5 => |life, state| Promise::P5.is_kept(life, state),
        Promise::P6 => |life, state| Promise::P6.is_kept(life, state),
        Promise::P7 => |life, state| Promise::P7.is_kept(life, state),
        Promise::P8 => |life, state| Promise::P8.is_kept(life, state),
        Promise::P9 => |life, state| Promise::P9.is_kept(life, state),
        Promise::P10 => |life, state| Promise::P10.is_kept(life, state),
        Promise::P13 => |life, state| Promise::P13.is_kept(life, state),
        Promise::Run => |life, state| Promise::Run.is_kept(life, state),
    }
}

/// Checks that after a lease without messages to the store, the next claim owns the key, or learns
/// its outcome.
fn is_free_after_a_lease(life: &Life, state: &State) -> bool {
    if state.slot.is_none_or(|slot| slot.owner().is_none()) {
        return true;
    }
    let later = (0..life.bounds.lease).fold(state.slot, |slot, _| slot.and_then(Slot::tick));
    match life.store.probe(later) {
        Reply::Owned(_) | Reply::Committed(_) | Reply::Done => true,
        Reply::Abandoned => !life.bounds.take_over,
        Reply::NotIssued => life.bounds.issued,
        Reply::Exhausted => life.bounds.max_attempts.is_some(),
        Reply::InFlight | Reply::Mismatch | Reply::Held | Reply::Lost => false,
    }
}

/// Whether a lease is that of a call that is under way, or of one that was cut off.
fn is_held_by_somebody(state: &State) -> bool {
    let Some(Slot {
        entry: Entry::InFlight {
            owner, lease: 1.., ..
        },
        ..
    }) = state.slot
    else {
        return true;
    };
    let Some((caller, call)) = owner
        .of()
        .and_then(|(caller, call)| Some((state.callers.get(caller)?, call)))
    else {
        return false;
    };
    (caller.call == call && caller.phase != Phase::Idle) || caller.excused & (1 << call) != 0
}

/// The events that must be reachable.
const SOMETIMES: &[(&str, Condition)] = &[
    ("what the first claim finds is claimed", |life, state| {
        came_from(
            state,
            if life.bounds.issued {
                Origin::Issued
            } else {
                Origin::Nothing
            },
        )
    }),
    ("a released key is claimed again", |_, state| {
        came_from(state, Origin::Released)
    }),
    (
        "a run goes on after a release, or nobody may take over",
        |life, state| {
            matches!(
                state.slot,
                Some(Slot {
                    entry: Entry::InFlight { run: Some(_), .. },
                    ..
                })
            ) || !life.bounds.take_over
        },
    ),
    (
        "an abandoned key is taken over, or its claim rejected",
        |life, state| {
            came_from(state, Origin::Abandoned)
                || !life.bounds.take_over
                    && any(state, |caller| caller.is_claiming(false))
                    && state.slot.is_some_and(Slot::is_abandoned)
        },
    ),
    ("a claim finds the key in flight", |_, state| {
        any(state, |caller| caller.is_claiming(false)) && state.slot.is_some_and(Slot::is_alive)
    }),
    ("a duplicate is replayed", |_, state| {
        any(state, |caller| caller.is_claiming(false))
            && matches!(
                state.slot,
                Some(Slot {
                    entry: Entry::Committed { .. },
                    ..
                })
            )
    }),
    ("a duplicate learns that it is done", |_, state| {
        any(state, |caller| caller.is_claiming(false))
            && matches!(
                state.slot,
                Some(Slot {
                    entry: Entry::Done { .. },
                    ..
                })
            )
    }),
    ("a claim that was sent again is recognised", |_, state| {
        each(state).any(|(id, caller)| {
            caller.is_claiming(true) && caller.wire == Wire::Sent && owns(state, id)
        })
    }),
    ("a claim is undone", |_, state| {
        each(state)
            .any(|(id, caller)| matches!(caller.phase, Phase::Undoing { .. }) && owns(state, id))
    }),
    (
        "a claim is to be undone that was never carried out, or has been taken over",
        |_, state| {
            each(state).any(|(id, caller)| {
                matches!(caller.phase, Phase::Undoing { .. }) && !owns(state, id)
            })
        },
    ),
    // Nobody gives a key up that is still to commit: another's claim was undone.
    (
        "an abandoned record is again as it was, and its owner is to commit",
        |life, state| {
            matches!(
                state.slot,
                Some(Slot {
                    entry: Entry::InFlight { lease: 0, .. },
                    ..
                })
            ) && each(state).any(|(id, caller)| {
                matches!(caller.phase, Phase::Committing { .. }) && owns(state, id)
            }) || !life.bounds.take_over
        },
    ),
    ("a commit comes after the lease, and in time", |_, state| {
        each(state)
            .any(|(id, caller)| matches!(caller.phase, Phase::Committing { .. }) && owns(state, id))
            && state.slot.is_some_and(Slot::is_abandoned)
    }),
    (
        "a commit comes too late, or nobody may take over",
        |life, state| {
            each(state).any(|(id, caller)| {
                matches!(caller.phase, Phase::Committing { .. }) && !owns(state, id)
            }) && state
                .slot
                .is_some_and(|slot| slot.owner().is_some() || !life.bounds.take_over)
        },
    ),
    ("a commit is accepted, and sent again", |_, state| {
        matches!(
            state.slot,
            Some(Slot {
                entry: Entry::Committed { .. },
                ..
            })
        ) && any(state, |caller| {
            matches!(caller.phase, Phase::Committing { .. })
        })
    }),
    ("what an operator settled is replaced", |life, state| {
        let replaced = matches!(
            state.slot,
            Some(Slot {
                entry: Entry::Committed {
                    outcome: Id::REPLACED,
                    ..
                },
                ..
            })
        );
        replaced || !life.bounds.operated
    }),
    ("a lease is renewed", |_, state| {
        any(state, |caller| caller.renewal == Wire::Reply(Reply::Held))
    }),
    ("a renewal is refused", |_, state| {
        any(state, |caller| caller.renewal == Wire::Reply(Reply::Lost))
    }),
    (
        "a body is there past its deadline, and is not polled",
        |_, state| {
            any(state, |caller| {
                matches!(
                    caller.phase,
                    Phase::Body {
                        left: 0,
                        begun: true,
                        ..
                    }
                )
            })
        },
    ),
    (
        "a body is there past its deadline, while another runs, or none may",
        |life, state| any(state, |caller| caller.superseded) || !life.bounds.take_over,
    ),
];

fn any(state: &State, is: impl Fn(&Caller) -> bool) -> bool {
    state.callers.iter().any(is)
}

fn each(state: &State) -> impl Iterator<Item = (Id, &Caller)> {
    state
        .callers
        .iter()
        .enumerate()
        .map(|(at, caller)| (Id::new(at, caller.call), caller))
}

fn owns(state: &State, id: Id) -> bool {
    state.slot.and_then(Slot::owner) == Some(id)
}

fn came_from(state: &State, from: Origin) -> bool {
    matches!(state.slot, Some(Slot { entry: Entry::InFlight { origin, owner, .. }, .. })
        if origin == from && owner != Id::NOBODY)
}
