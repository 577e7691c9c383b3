//! Parting words: a transfer is over here, and its peer must still be told. Said again until answered, a bounded number of times.

use baton_types::{EngineId, Time, TransferId};

use crate::action::PeerAddress;
use crate::endpoint::Endpoint;
use crate::message::Message;
use crate::timer::Reason;

/// After so many the peer is left to its own time limits.
const MAX_TRIES: u32 = 5;

#[derive(Clone, Debug)]
pub(crate) struct Farewell {
    pub peer: EngineId,
    /// Where to dial it if there is no connection; none for a source, which never dials.
    pub address: Option<PeerAddress>,
    /// Done or Abort.
    pub message: Message,
    tries: u32,
}

impl Endpoint {
    pub(crate) fn bid_farewell(
        &mut self,
        now: Time,
        transfer: TransferId,
        peer: EngineId,
        address: Option<PeerAddress>,
        message: Message,
    ) {
        if self.farewells.len() >= self.config.limits.transfers {
            // The peer's own time limits end it (I11).
            return;
        }
        self.farewells.insert(transfer, Farewell { peer, address, message, tries: 0 });
        self.repeat_farewell(now, transfer);
    }

    pub(crate) fn repeat_farewell(&mut self, now: Time, transfer: TransferId) {
        let Some(farewell) = self.farewells.get_mut(&transfer) else { return };
        if farewell.tries >= MAX_TRIES {
            self.farewells.remove(&transfer);
            return;
        }
        farewell.tries += 1;
        let (peer, address, message) =
            (farewell.peer.clone(), farewell.address.clone(), farewell.message.clone());
        if let Some(address) = address {
            self.seek_peer(&address);
        }
        self.say(&peer, message);
        self.timers.set(Reason::Farewell(transfer), now + self.config.retry);
    }

    /// The peer has answered.
    pub(crate) fn end_farewell(&mut self, transfer: TransferId, peer: &EngineId) {
        if self.farewells.get(&transfer).is_some_and(|farewell| farewell.peer == *peer) {
            self.farewells.remove(&transfer);
            self.timers.clear(&Reason::Farewell(transfer));
        }
    }
}
