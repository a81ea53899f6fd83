//! The whole: what stands at the key, the callers, and what an onlooker saw.

use crate::bounds::Bounds;
use crate::caller::{Caller, Id, Phase};
use crate::promise::Onlooker;
use crate::slot::{Entry, NAMES, Slot};
use crate::ticks::less;

/// How many callers there are.
pub const CALLERS: usize = 3;

/// One state of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    /// The value at the key.
    pub slot: Option<Slot>,
    /// Those who want it.
    pub callers: [Caller; CALLERS],
    /// How many faults there were.
    pub faults: u8,
    /// The onlooker's knowledge.
    pub seen: Onlooker,
}

impl State {
    pub(crate) fn new(entry: Option<Entry>, bounds: &Bounds) -> Self {
        let slot = entry.map(|entry| Slot {
            entry,
            left: bounds.keep,
            then_done: 0,
        });
        Self {
            slot,
            callers: [Caller::NEW; CALLERS],
            faults: 0,
            seen: Onlooker::NEW,
        }
    }

    /// Lets a tick pass, for the store and for everybody. Ages are counted up to `oldest`.
    pub(crate) fn tick(&mut self, oldest: u8) {
        let older = |age: &mut u8| *age = (*age + 1).min(oldest);
        self.slot = self.slot.and_then(Slot::tick);
        self.seen.tick(self.slot.as_ref());
        for caller in &mut self.callers {
            match &mut caller.phase {
                Phase::Claiming { age, .. } | Phase::Undoing { age } => older(age),
                Phase::Body { left, .. } => *left = less(*left),
                Phase::Idle | Phase::Committing { .. } | Phase::Releasing { .. } => {}
            }
            if caller.renewal != crate::caller::Wire::Free {
                older(&mut caller.renewal_age);
            }
        }
    }

    /// All who are named, apart from the callers themselves.
    fn names(&mut self) -> [Option<&mut Id>; NAMES + 2] {
        let mut names = [const { None }; NAMES + 2];
        let in_slot = self.slot.iter_mut().flat_map(|slot| slot.entry.names());
        let all = in_slot.chain(self.seen.names());
        names
            .iter_mut()
            .zip(all)
            .for_each(|(place, id)| *place = id);
        names
    }

    /// The same world with the callers in an order that depends on nothing but what each does:
    /// callers have no identity, so one of each such family is enough.
    pub(crate) fn in_order(mut self) -> Self {
        let called = self.names().map(|id| id.map(|id| *id).and_then(Id::of));
        let key = |caller: usize| {
            let here = called.map(|id| id.filter(|(of, _)| *of == caller).map(|(_, call)| call));
            (self.callers[caller], here)
        };
        let mut order: [usize; CALLERS] = std::array::from_fn(|place| place);
        order.sort_unstable_by_key(|caller| key(*caller));
        if order.is_sorted() {
            return self;
        }
        let mut places = [0; CALLERS];
        for (place, caller) in order.iter().enumerate() {
            places[*caller] = place;
        }
        self.callers = order.map(|caller| self.callers[caller]);
        for id in self.names().into_iter().flatten() {
            if let Some((caller, call)) = id.of()
                && let Some(place) = places.get(caller)
            {
                *id = Id::new(*place, call);
            }
        }
        self
    }
}
