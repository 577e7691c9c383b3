//! Room for the connections that others open: so many in all, and so many of them from one address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

/// Of all places, one address may have this part: one that opens connections as fast as it can keeps nobody else out.
const SHARE: usize = 8;

#[derive(Debug)]
pub(super) struct Places {
    max: usize,
    taken: Mutex<HashMap<IpAddr, usize>>,
}

/// Given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    pub from: SocketAddr,
    places: Arc<Places>,
}

impl Places {
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: Mutex::default() })
    }

    /// None if there is no place left, or none for this address.
    pub fn take(self: &Arc<Self>, from: SocketAddr) -> Option<Place> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = taken.values().sum();
        let of_one = taken.get(&household(from.ip())).copied().unwrap_or(0);
        if all >= self.max || of_one >= self.max.div_ceil(SHARE) {
            return None;
        }
        taken.insert(household(from.ip()), of_one + 1);
        Some(Place { from, places: self.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let address = household(self.from.ip());
        match taken.get_mut(&address) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.remove(&address)),
        }
    }
}

/// Whose address it is: of IPv6, every household has 2^64.
fn household(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_never_has_all_places() {
        let places = Places::new(16);
        let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 1);
        let mut held: Vec<Place> = (0..2).map(|_| places.take(at("10.0.0.1")).unwrap()).collect();
        assert!(places.take(at("10.0.0.1")).is_none());
        assert!(places.take(at("::ffff:10.0.0.1")).is_none(), "the same address");
        held.push(places.take(at("2001:db8::1")).unwrap());
        held.push(places.take(at("2001:db8::2")).unwrap());
        assert!(places.take(at("2001:db8::3")).is_none(), "the same household");
        held.remove(0);
        held.push(places.take(at("10.0.0.1")).unwrap());
        let others = (2..).map(|n| places.take(at(&format!("10.0.0.{n}")))).take_while(Option::is_some);
        held.extend(others.flatten());
        assert_eq!(held.len(), 16);
        drop(held);
        assert!(places.taken.lock().unwrap().is_empty(), "nothing is remembered of who left");
    }
}
