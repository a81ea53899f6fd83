#![allow(unused)]

use idem::store::record::{Claim, Commit, Encoded, Release, Renewal};
use idem::{Abandoned, Error, InTransactionPolicy, RecordState, Storable};

// Traits that only `idem` implements.

struct Mine;

impl<Via> Storable<Via> for Mine {
    type Stored = ();

    fn to_stored(&self) -> impl serde::Serialize {}

    fn from_stored(_: ()) -> Option<Self> {
        Some(Self)
    }
}

impl<E> InTransactionPolicy<E> for Mine {}

// Structs that get new fields.

fn fields_of_a_claim(claim: Claim) -> Claim {
    Claim { take_over: false, ..claim }
}

fn fields_of_a_commit(commit: Commit) -> Commit {
    Commit { attempt: 2, ..commit }
}

fn all_fields_of_a_release(Release { id, owner, to, names_run }: Release) {}

fn all_fields_of_a_renewal(Renewal { id, owner, hold }: Renewal) {}

fn all_fields_of_an_outcome(outcome: Encoded) {
    let Encoded { is_error, codec, payload, metadata } = outcome;
}

// Enums that get new variants.

fn all_states(state: RecordState) -> u8 {
    match state {
        RecordState::Issued => 1,
        RecordState::Expired => 2,
        RecordState::InFlight => 3,
        RecordState::Abandoned => 4,
        RecordState::Released => 5,
        RecordState::Committed => 6,
        RecordState::Done => 7,
    }
}

fn all_settings(abandoned: Abandoned) -> u8 {
    match abandoned {
        Abandoned::Rerun => 1,
        Abandoned::Reject => 2,
    }
}

fn all_errors(error: &Error) -> u8 {
    match error {
        Error::InFlight { .. } => 1,
        Error::Duplicate { .. } => 2,
    }
}

fn main() {}
