//! A range of addresses as people write it: `10.0.0.0/8`, `fd00::/8`, or one address alone.

use std::{fmt, net::IpAddr, str::FromStr};

use postrider_core::{Error, Result};

/// A network: an address and how many of its leading bits count.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network {
    base: IpAddr,
    bits: u32,
}

impl Network {
    /// Whether an address lies in it. An IPv6 address that stands for an IPv4 one lies in no IPv4 network: it would be
    /// reached another way.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let (width, base, other) = match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(other)) => (32, u128::from(base.to_bits()), u128::from(other.to_bits())),
            (IpAddr::V6(base), IpAddr::V6(other)) => (128, base.to_bits(), other.to_bits()),
            _ => return false,
        };
        self.bits == 0 || (base ^ other) >> (width - self.bits) == 0
    }
}

impl FromStr for Network {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            let shown: String = text.escape_debug().take(60).collect();
            Error::invalid("not a network; write one such as `10.0.0.0/8`, `fd00::/8` or `192.0.2.7`")
                .with("network", shown)
        };
        let (base, bits) = text.split_once('/').map_or((text, None), |(base, bits)| (base, Some(bits)));
        let base: IpAddr = base.parse().map_err(|_| wrong())?;
        let width = if base.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(width), str::parse).map_err(|_| wrong())?;
        if bits > width {
            return Err(wrong());
        }
        let network = Self { base, bits };
        // `10.1.2.3/8` is more likely a slip than a network; which of the two was meant cannot be known.
        let inside = match base {
            IpAddr::V4(base) => base.to_bits().checked_shl(bits).unwrap_or(0) == 0,
            IpAddr::V6(base) => base.to_bits().checked_shl(bits).unwrap_or(0) == 0,
        };
        if inside { Ok(network) } else { Err(wrong().with("problem", "bits are set behind the prefix")) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(network: &str, address: &str) -> bool {
        network.parse::<Network>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn a_network_has_what_lies_in_it() {
        assert!(contains("10.0.0.0/8", "10.255.0.1") && !contains("10.0.0.0/8", "11.0.0.0"));
        assert!(contains("192.0.2.7", "192.0.2.7") && !contains("192.0.2.7", "192.0.2.8"));
        assert!(contains("fd00::/8", "fd12::1") && !contains("fd00::/8", "fe80::1"));
        assert!(contains("0.0.0.0/0", "8.8.8.8") && !contains("0.0.0.0/0", "::1"));
        assert!(!contains("10.0.0.0/8", "::ffff:10.0.0.1"), "a mapped address is not the address");
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in ["", "10.0.0.0/33", "10.0.0/8", "::/129", "10.0.0.0/-1", "10.1.2.3/8", "fd00::1/8", "local"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
