//! With sweeps, the store answers as one map would.

use super::*;
use crate::layers::memory::shard::Slot;
use crate::record::OnStep;

/// The store as one map, without sweeps.
#[derive(Default)]
struct Plain(HashMap<RecordId, Slot>);

impl Plain {
    fn find(&mut self, id: &RecordId, now: Duration) -> Option<(Record, Duration)> {
        let slot = self.0.get_mut(id)?;
        if slot.is_over(now) {
            self.0.remove(id);
            return None;
        }
        slot.pass(now);
        Some((slot.record.clone(), slot.expires.saturating_sub(now)))
    }

    fn claim(&mut self, claim: &Claim, now: Duration) -> Claimed {
        let found = self.find(&claim.id, now);
        let (on_claim, left, lease_left, age) = match &found {
            None => (claim.on_nothing(), Duration::ZERO, None, Duration::ZERO),
            Some((record, left)) => (
                record.on_claim(claim),
                *left,
                record.lease_left(*left),
                record.lease_age(*left),
            ),
        };
        let next = match (on_claim, lease_left) {
            (OnClaim::Answer(answer), _) => return answer,
            (OnClaim::IfLeaseRanOut { then, .. }, None) => match then.at_age(age) {
                Ok(next) => next,
                Err(answer) => return answer,
            },
            (OnClaim::IfLeaseRanOut { attempt, .. }, Some(lease_left)) => {
                return Claimed::InFlight {
                    attempt,
                    lease_left,
                };
            }
            (OnClaim::IfIssueLives { grace, .. }, _) if left <= grace => {
                return Claimed::IssueExpired;
            }
            (OnClaim::IfIssueLives { then: next, .. } | OnClaim::Take(next), _) => next,
        };
        let owned = Claimed::Owned {
            attempt: next.attempt,
            from: next.origin,
        };
        let slot = Slot {
            expires: now + next.hold,
            record: Record::InFlight(next),
            then_done: Duration::ZERO,
        };
        self.0.insert(claim.id.clone(), slot);
        owned
    }

    fn issue(&mut self, issue: &Issue, now: Duration) -> Issued {
        if let Some((record, _)) = self.find(&issue.id, now) {
            return record.on_issue(issue);
        }
        let slot = Slot {
            record: issue.record(),
            expires: now + issue.expires_in(),
            then_done: Duration::ZERO,
        };
        self.0.insert(issue.id.clone(), slot);
        Issued::Issued
    }

    fn step(
        &mut self,
        id: &RecordId,
        now: Duration,
        on: impl FnOnce(&Record) -> OnStep,
    ) -> Ownership {
        let Some((record, left)) = self.find(id, now) else {
            return Ownership::Lost;
        };
        match on(&record) {
            OnStep::Answer(answer) => return answer,
            OnStep::Remove => drop(self.0.remove(id)),
            OnStep::Put {
                record,
                expires_in,
                then_done,
            } => {
                let expires = now + expires_in.unwrap_or(left);
                self.0.insert(
                    id.clone(),
                    Slot {
                        record,
                        expires,
                        then_done,
                    },
                );
            }
        }
        Ownership::Held
    }

    fn remove(&mut self, id: &RecordId, now: Duration) -> Removed {
        let Some((record, left)) = self.find(id, now) else {
            return Removed::Nothing;
        };
        let removed = record.on_remove(left);
        if removed == Removed::Removed {
            self.0.remove(id);
        }
        removed
    }
}

/// One shard, so that sweeps come at every turn, and few keys, so that they meet records in every
/// state.
#[test]
#[expect(clippy::too_many_lines, reason = "an arm for each step")]
fn swept_it_answers_as_a_plain_map_would() {
    const KEYS: usize = 300;
    for seed in 0..20 {
        let mut random = Rng::with_seed(seed);
        let clock = ByHand::default();
        let store = MemoryStore::with_shards(1, KEYS, Box::new(clock.clone()), None);
        let mut plain = Plain::default();
        let mut owners: HashMap<usize, Claim> = HashMap::new();
        for _ in 0..10_000 {
            clock.advance(Duration::from_millis(random.u64(0..20)));
            let at = clock.elapsed();
            let key = random.usize(0..KEYS);
            let last = owners
                .get(&key)
                .cloned()
                .unwrap_or_else(|| claim(key, SECOND));
            match random.u8(0..14) {
                0..5 => {
                    let fingerprint = random
                        .bool()
                        .then(|| Fingerprint::of(&random.u8(0..2)).unwrap());
                    let take_over = random.bool();
                    let max_attempts = random.bool().then_some(3);
                    let hold = random.u32(1..40) * SECOND;
                    let must_be_issued = random.u8(0..4) == 0;
                    let take_over_after = random.bool().then(|| random.u32(1..40) * SECOND);
                    let claim = Claim {
                        fingerprint,
                        take_over,
                        take_over_after,
                        ..claim(key, hold)
                    };
                    let claim = Claim {
                        max_attempts,
                        must_be_issued,
                        ..claim
                    };
                    let answer = now(store.claim(&claim)).unwrap();
                    assert_eq!(answer, plain.claim(&claim, at));
                    if let Claimed::Owned { .. } = answer {
                        owners.insert(key, claim);
                    }
                }
                5..8 => {
                    let ttl = random.u32(1..40) * SECOND;
                    let payload = [1, 30, 200, 1_000, 2_000][random.usize(0..5)];
                    let mut commit =
                        commit(&last, payload, ttl, ttl + random.u32(0..2) * 20 * SECOND);
                    if random.u8(0..5) == 0 {
                        commit.outcome = None;
                    }
                    assert_eq!(
                        now(store.commit(&commit)).unwrap(),
                        plain.step(&commit.id, at, |record| record.on_commit(&commit))
                    );
                }
                8 => {
                    let keep = 20 * SECOND;
                    let released = ReleaseTo::Released { keep };
                    let undone = ReleaseTo::Undone { keep };
                    let all = [
                        released,
                        ReleaseTo::Abandoned,
                        ReleaseTo::Unanswered,
                        undone,
                    ];
                    let release = Release {
                        id: last.id,
                        owner: last.owner,
                        to: all[random.usize(0..4)],
                        names_run: random.bool(),
                    };
                    assert_eq!(
                        now(store.release(&release)).unwrap(),
                        plain.step(&release.id, at, |record| record.on_release(&release))
                    );
                }
                9 => {
                    let renewal = Renewal {
                        id: last.id,
                        owner: last.owner,
                        hold: last.hold,
                    };
                    assert_eq!(
                        now(store.renew(std::slice::from_ref(&renewal)))
                            .pop()
                            .unwrap()
                            .unwrap(),
                        plain.step(&renewal.id, at, |record| record.on_renew(&renewal))
                    );
                }
                10..12 => {
                    let ttl = random.u32(1..20) * SECOND;
                    let grace = random.u32(0..20) * SECOND;
                    let issue = Issue {
                        id: last.id.clone(),
                        ttl,
                        grace,
                    };
                    let answers = now(store.issue(std::slice::from_ref(&issue)));
                    assert_eq!(
                        answers.into_iter().map(Result::unwrap).collect::<Vec<_>>(),
                        [plain.issue(&issue, at)]
                    );
                }
                12 => assert_eq!(
                    now(store.remove(&last.id)).unwrap(),
                    plain.remove(&last.id, at)
                ),
                _ => {
                    let found = plain
                        .find(&last.id, at)
                        .map(|(record, left)| RecordInfo::new(&record, left));
                    assert_eq!(now(store.inspect(&last.id)).unwrap(), found);
                }
            }
            assert_eq!(store.len(), lock(&store.0.shards[0]).records.count());
        }
        assert!(looked_at(&store) > 1_000, "{} looked at", looked_at(&store));
        // When all has expired, the store holds nothing.
        clock.advance(100 * 86_400 * SECOND);
        let mut locked = lock(&store.0.shards[0]);
        drop(locked.records.sweep(clock.elapsed(), &store.0.room));
        assert!(locked.records.count() == 0 && store.is_empty());
    }
}
