//! Which records a listing with a key filter finds.

use std::collections::BTreeSet;

use idem_core::KeyPart;
use idem_core::record::{RecordId, RecordState};
use idem_core::store::admin::{KeyFilter, Listing};

use crate::bench::{Bench, claim};
use crate::check::{Failure, broken, same};
use crate::trial::{Trial, code};

pub(super) const TRIALS: &[Trial] = &[
    code(
        "list_keys::a_beginning_has_the_keys_whose_first_part_begins_with_it",
        |t| {
            Box::pin(async move {
                let wanted = [
                    own(t, "", "user-7").await?,
                    own(t, "", &("user-7", "o-1")).await?,
                    own(t, "", "user-70").await?,
                    own(t, "", &("user-7 é", 1)).await?,
                    own(t, "", &(("user-7", 1), "sku")).await?,
                    own(t, "", &((((("user-7", 1), 2), 3), 4), 5)).await?,
                ];
                for other in ["User-7", "user-8", "user-", "a user-7", "user-6é", "zz"] {
                    own(t, "", other).await?;
                }
                own(t, "", &("o-1", "user-7")).await?;
                own(t, "", &(("o-1", "user-7"), 1)).await?;
                for limit in [1, 2, 100] {
                    let listing = of_trial(t)?.key("user-7*").limit(limit);
                    same("the listing", listed(t, &listing).await?.keys, set(&wanted))?;
                }
                let all = listed(t, &of_trial(t)?.key("*")).await?.keys;
                same("how many `*` has", all.len(), wanted.len() + 8)
            })
        },
    ),
    code(
        "list_keys::every_character_but_a_star_at_the_end_stands_for_itself",
        |t| {
            Box::pin(async move {
                let text = "_%?*[]\\^-: ~é🦀'\"";
                for c in text.chars() {
                    let wanted = own(t, "", &(format!("a{c}b"), c as u32)).await?;
                    own(t, "", &("aXb", c as u32)).await?;
                    let found = listed(t, &of_trial(t)?.key(format!("a{c}*"))).await?.keys;
                    same(&format!("the keys of `a{c}*`"), found, set(&[wanted]))?;
                    let part = KeyFilter::first_part(&format!("a{c}b"));
                    let found = listed(t, &of_trial(t)?.key(part)).await?.keys.len();
                    same(&format!("how many have the first part `a{c}b`"), found, 1)?;
                }
                let all = listed(t, &of_trial(t)?.key("a*")).await?.keys.len();
                same("how many begin with `a`", all, 2 * text.chars().count())
            })
        },
    ),
    code("list_keys::without_a_star_it_is_the_whole_key", |t| {
        Box::pin(async move {
            let long = format!("user-7-{}", "k".repeat(1000));
            own(t, "", "user-70").await?;
            for (filter, wanted) in [
                ("user-7", own(t, "", "user-7").await?),
                ("user-7:o-1", own(t, "", &("user-7", "o-1")).await?),
                ("user-7 o", own(t, "", "user-7 o").await?),
                (long.as_str(), own(t, "", &long).await?),
            ] {
                let found = listed(t, &of_trial(t)?.key(filter)).await?;
                same("the listing", found.keys, set(&[wanted]))?;
                same("whether it says of digests", found.has_digests, false)?;
            }
            let found = listed(t, &of_trial(t)?.key("user").limit(1)).await?.keys;
            same("the keys of a beginning without a star", found.len(), 0)
        })
    }),
    code("list_keys::a_first_part_has_one_tenant_alone", |t| {
        Box::pin(async move {
            let wanted = [
                own(t, "", "user-7").await?,
                own(t, "", &("user-7", "o-1")).await?,
                own(t, "", &("user-7", ("o", 2))).await?,
                own(t, "", &(("user-7", "o-1"), "sku")).await?,
            ];
            own(t, "", "user-70").await?;
            own(t, "", &("user-7-x", "o-1")).await?;
            own(t, "", &("user-7:o-1", "x")).await?;
            own(t, "", &(("user-70", "o-1"), "sku")).await?;
            let listing = of_trial(t)?.key(KeyFilter::first_part("user-7")).limit(3);
            same("the listing", listed(t, &listing).await?.keys, set(&wanted))
        })
    }),
    code(
        "list_keys::a_key_that_is_stored_as_a_digest_is_not_passed_over_in_silence",
        |t| {
            Box::pin(async move {
                let short = own(t, "", "user-7").await?;
                let before = listed(t, &of_trial(t)?.key("user-7*")).await?;
                same("whether it says of digests", before.has_digests, false)?;
                own(t, "", &format!("user-7-{}", "k".repeat(1000))).await?;
                for filter in [KeyFilter::from("user-7*"), KeyFilter::first_part("user-7")] {
                    let found = listed(t, &of_trial(t)?.key(filter)).await?;
                    same("the listing", found.keys, set(std::slice::from_ref(&short)))?;
                    same("whether it says of digests", found.has_digests, true)?;
                }
                let all = listed(t, &of_trial(t)?.key("*")).await?;
                same("how many `*` has", all.keys.len(), 2)?;
                same("whether `*` says of digests", all.has_digests, false)
            })
        },
    ),
    code(
        "list_keys::of_every_operation_or_of_one_and_of_a_state",
        |t| {
            Box::pin(async move {
                // No other trial has this key, and the listing has every operation.
                let tenant = format!("tenant of {}", t.id()?.operation());
                let mut wanted = Vec::new();
                for suffix in ["", "x", "::x", ".x"] {
                    wanted.push(own(t, suffix, &(&tenant, "o-1")).await?);
                    own(t, suffix, &("nobody", &tenant)).await?;
                }
                let filter = KeyFilter::first_part(&tenant);
                for limit in [1, 100] {
                    let listing = Listing::all().key(filter.clone()).limit(limit);
                    same("the listing", listed(t, &listing).await?.keys, set(&wanted))?;
                }
                let Some(one) = wanted.first() else {
                    return Err(broken("there is one".to_owned()));
                };
                let listing = of_trial(t)?.key(filter);
                let found = listed(t, &listing.clone().state(RecordState::InFlight)).await?;
                same(
                    "the listing of a state",
                    found.keys,
                    set(std::slice::from_ref(one)),
                )?;
                let found = listed(t, &listing.state(RecordState::Committed)).await?;
                same("how many are committed", found.keys.len(), 0)
            })
        },
    ),
];

/// The pages of a listing, together.
struct Listed {
    keys: BTreeSet<String>,
    has_digests: bool,
}

async fn listed(t: &Bench, listing: &Listing) -> Result<Listed, Failure> {
    let mut listing = listing.clone();
    let mut found = Listed {
        keys: BTreeSet::new(),
        has_digests: false,
    };
    loop {
        let page = t.store.list(&listing).await?;
        found.has_digests |= page.has_digests;
        let ids = page.records.iter().map(|listed| listed.id.as_str());
        found.keys.extend(ids.map(str::to_owned));
        match page.next {
            Some(cursor) => listing = listing.after(cursor),
            None => return Ok(found),
        }
    }
}

/// Claims a key, in the operation of the trial or in one whose name goes on after that.
async fn own<K: KeyPart + ?Sized>(t: &Bench, suffix: &str, key: &K) -> Result<RecordId, Failure> {
    let id = t.id_of(suffix, key)?;
    t.own(&claim(&id)).await?;
    Ok(id)
}

fn of_trial(t: &Bench) -> Result<Listing, Failure> {
    Ok(Listing::all().operation(t.id()?.operation()))
}

fn set(ids: &[RecordId]) -> BTreeSet<String> {
    ids.iter().map(|id| id.as_str().to_owned()).collect()
}
