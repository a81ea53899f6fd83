//! The record's life as the model checker takes it: states, what leads from one to the next, and
//! the properties that hold in each.

use stateright::{Model, Property};

use crate::life::{Act, Life};
use crate::operator::Decision;
use crate::properties;
use crate::slot::Entry;
use crate::state::{CALLERS, State};

impl Model for Life {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(
            self.bounds.issued.then_some(Entry::Issued),
            &self.bounds,
        )]
    }

    fn actions(&self, state: &State, acts: &mut Vec<Act>) {
        acts.push(Act::Tick);
        if self.bounds.operated {
            acts.extend([Decision::Settle, Decision::Replace].map(Act::Intervenes));
        }
        for at in 0..CALLERS {
            self.acts_of(
                at,
                &state.callers[at],
                state.faults < self.bounds.faults,
                acts,
            );
        }
    }

    fn next_state(&self, state: &State, act: Act) -> Option<State> {
        let mut next = *state;
        self.act(&mut next, act)?;
        if self.in_order {
            next = next.in_order();
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
