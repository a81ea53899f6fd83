//! Renewals: many leases in few round trips.

use idem_core::record::{Ownership, Renewal};
use idem_core::{StoreError, wire};

use crate::keys::Keys;
use crate::many::{self, Step};
use crate::script::{RENEW, evalsha, millis, ownership};
use crate::server::Server;

pub(crate) async fn renew(server: &Server, keys: &Keys, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
    let step = |renewal: &Renewal| {
        let (owner, hold) = (wire::owner_prefix(renewal.owner), millis(renewal.hold).to_string());
        let key = keys.record(&renewal.id);
        Step { command: evalsha(&RENEW, &[&key], &[owner.as_bytes(), hold.as_bytes()]), key }
    };
    let steps: Vec<Step> = renewals.iter().map(step).collect();
    many::carry_out(server, &steps, Some(&RENEW), |_, server, answer| ownership(server, answer)).await
}
