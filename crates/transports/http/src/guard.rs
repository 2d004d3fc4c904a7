//! The guard: which URLs and addresses a webhook may go to.
//!
//! Whoever chooses an endpoint, or controls the DNS of its name, must not be able to make the relay speak to what only the
//! relay can reach: the machine itself, its neighbours, the cloud's metadata service. So every address is refused that is
//! not plainly public, unless it is allowed in writing. For IPv4 the special ranges are listed; for IPv6 only global
//! unicast (`2000::/3`) passes, without the ranges in it that are special or that wrap an IPv4 address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::network::Network;

/// What may be connected to. The default: `https` on port 443, public addresses only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    http: bool,
    private: bool,
    ports: Vec<u16>,
    allow: Vec<Network>,
}

/// Why an address is special.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Unspecified,
    Loopback,
    Private,
    Shared,
    LinkLocal,
    Metadata,
    Multicast,
    Documentation,
    Reserved,
    Embedded,
}

impl Class {
    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::Shared => "shared (carrier-grade NAT)",
            Self::LinkLocal => "link-local",
            Self::Metadata => "a cloud's metadata service",
            Self::Multicast => "multicast",
            Self::Documentation => "for documentation",
            Self::Reserved => "reserved",
            Self::Embedded => "an IPv4 address inside an IPv6 one",
        }
    }

    /// What would let a webhook go there: no more than really does.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Self::Multicast => "no webhook can go there",
            inside if inside.is_inside() => "allow it with `allow` or `allow_private`",
            _ => "only its network in `allow` would open it",
        }
    }

    /// Whether [`Guard::allow_private`] opens it. What is link-local or gives out credentials needs its own word.
    fn is_inside(self) -> bool {
        matches!(self, Self::Loopback | Self::Private | Self::Shared)
    }
}

impl Guard {
    /// Whether plain `http`, on port 80, is allowed. Default no: who listens on the way reads the payload.
    #[must_use]
    pub fn allow_http(mut self, on: bool) -> Self {
        self.http = on;
        self
    }

    /// Whether loopback, private (`10.0.0.0/8`, `172.16.0.0/12`, `192.168.0.0/16`, `fc00::/7`) and shared
    /// (`100.64.0.0/10`) addresses are allowed. Default no. Link-local addresses and metadata services stay closed.
    #[must_use]
    pub fn allow_private(mut self, on: bool) -> Self {
        self.private = on;
        self
    }

    /// Allows a network, whatever is in it.
    #[must_use]
    pub fn allow(mut self, network: Network) -> Self {
        self.allow.push(network);
        self
    }

    /// Allows a port beside 443, and 80 for plain `http`.
    #[must_use]
    pub fn allow_port(mut self, port: u16) -> Self {
        self.ports.push(port);
        self
    }

    pub(crate) fn permits_http(&self) -> bool {
        self.http
    }

    pub(crate) fn permits_port(&self, port: u16) -> bool {
        port == 443 || (port == 80 && self.http) || self.ports.contains(&port)
    }

    /// Whether an address may be connected to, or else what it is.
    pub(crate) fn check(&self, address: IpAddr) -> Result<(), Class> {
        if self.allow.iter().any(|network| network.contains(address)) {
            return Ok(());
        }
        match classify(address) {
            Some(class) if !(self.private && class.is_inside()) => Err(class),
            _ => Ok(()),
        }
    }
}

/// What is special about an address; `None` if it is public.
pub(crate) fn classify(address: IpAddr) -> Option<Class> {
    match address {
        IpAddr::V4(address) => classify_v4(address),
        IpAddr::V6(address) => classify_v6(address),
    }
}

fn classify_v4(address: Ipv4Addr) -> Option<Class> {
    // The registry of special addresses, and one public address that answers only inside its cloud.
    const SPECIAL: [([u8; 4], u32, Class); 20] = [
        ([0, 0, 0, 0], 8, Class::Unspecified),
        ([10, 0, 0, 0], 8, Class::Private),
        ([100, 100, 100, 200], 32, Class::Metadata),
        ([100, 64, 0, 0], 10, Class::Shared),
        ([127, 0, 0, 0], 8, Class::Loopback),
        ([168, 63, 129, 16], 32, Class::Metadata),
        ([169, 254, 169, 254], 32, Class::Metadata),
        ([169, 254, 170, 2], 32, Class::Metadata),
        ([169, 254, 0, 0], 16, Class::LinkLocal),
        ([172, 16, 0, 0], 12, Class::Private),
        ([192, 0, 0, 192], 32, Class::Metadata),
        ([192, 0, 0, 0], 24, Class::Reserved),
        ([192, 0, 2, 0], 24, Class::Documentation),
        ([192, 88, 99, 0], 24, Class::Reserved),
        ([192, 168, 0, 0], 16, Class::Private),
        ([198, 18, 0, 0], 15, Class::Reserved),
        ([198, 51, 100, 0], 24, Class::Documentation),
        ([203, 0, 113, 0], 24, Class::Documentation),
        ([224, 0, 0, 0], 4, Class::Multicast),
        ([240, 0, 0, 0], 4, Class::Reserved),
    ];
    let bits = address.to_bits();
    let within = |base: [u8; 4], prefix: u32| (bits ^ u32::from_be_bytes(base)) >> (32 - prefix) == 0;
    SPECIAL.iter().find(|(base, prefix, _)| within(*base, *prefix)).map(|(_, _, class)| *class)
}

fn classify_v6(address: Ipv6Addr) -> Option<Class> {
    let [first, second, third, ..] = address.segments();
    let bits = address.to_bits();
    let embedded = bits >> 32 == 0x0000_ffff // ::ffff:0:0/96, mapped
        || bits >> 32 == 0xffff_0000 // ::ffff:0:0:0/96, translated
        || (bits >> 32 == 0 && bits > 1) // ::/96, compatible
        || (first == 0x64 && second == 0xff9b) // NAT64, both prefixes
        || first == 0x2002 // 6to4
        || (first == 0x2001 && second == 0); // Teredo
    Some(match first {
        _ if bits == 0 => Class::Unspecified,
        _ if bits == 1 => Class::Loopback,
        _ if embedded => Class::Embedded,
        0xfd00 if second == 0xec2 && third == 0 => Class::Metadata,
        0xfd20 if second == 0xce => Class::Metadata,
        _ if first & 0xfe00 == 0xfc00 => Class::Private,
        _ if first & 0xffc0 == 0xfe80 => Class::LinkLocal,
        _ if first & 0xff00 == 0xff00 => Class::Multicast,
        0x2001 if second == 0xdb8 => Class::Documentation,
        0x2001 if second < 0x200 => Class::Reserved,
        0x3fff if second < 0x1000 => Class::Documentation,
        // Global unicast; everything else is not given out to anybody.
        _ if first & 0xe000 == 0x2000 => return None,
        _ => Class::Reserved,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn special_addresses_are_recognised_to_their_borders() {
        use Class::*;
        let special = [
            (Unspecified, &["0.0.0.0", "0.255.255.255", "::"][..]),
            (Loopback, &["127.0.0.1", "127.255.255.255", "::1"]),
            (
                Private,
                &["10.0.0.0", "10.255.255.255", "172.16.0.0", "172.31.255.255", "192.168.0.1", "fc00::", "fdff::1"],
            ),
            (Shared, &["100.64.0.0", "100.127.255.255"]),
            (LinkLocal, &["169.254.0.1", "169.254.255.255", "fe80::1", "febf::1"]),
            (
                Metadata,
                &[
                    "169.254.169.254",
                    "168.63.129.16",
                    "100.100.100.200",
                    "192.0.0.192",
                    "fd00:ec2::254",
                    "fd20:ce::254",
                ],
            ),
            (Multicast, &["224.0.0.1", "239.255.255.255", "ff02::1"]),
            (Documentation, &["192.0.2.1", "198.51.100.1", "203.0.113.255", "2001:db8::1", "3fff::1", "3fff:fff::1"]),
            (Reserved, &["192.0.0.1", "192.88.99.1", "198.18.0.1", "198.19.255.255", "240.0.0.1", "255.255.255.255"]),
            (Reserved, &["2001:1::1", "2001:20::1", "2001:1ff::1", "100::1", "5f00::1", "fec0::1", "4000::1", "1::1"]),
            (Embedded, &["::ffff:8.8.8.8", "::ffff:127.0.0.1", "::ffff:0:10.0.0.1", "::8.8.8.8", "64:ff9b::a00:1"]),
            (Embedded, &["64:ff9b:1::1", "2002:7f00:1::", "2001::1", "2001:0:53aa::1"]),
        ];
        for (class, addresses) in special {
            for text in addresses {
                assert_eq!(classify(address(text)), Some(class), "{text}");
            }
        }
        let public = [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2003::1",
            "3ffe:ffff::1",
            "2000::1",
            "3fff:1000::1",
        ];
        for text in public {
            assert_eq!(classify(address(text)), None, "{text}");
        }
    }

    #[test]
    fn allowing_private_addresses_opens_no_metadata_service() {
        let guard = Guard::default().allow_private(true);
        for text in ["10.0.0.1", "127.0.0.1", "::1", "192.168.1.1", "100.64.0.1", "fd12::1", "8.8.8.8"] {
            assert_eq!(guard.check(address(text)), Ok(()), "{text}");
        }
        for text in ["169.254.169.254", "169.254.1.1", "100.100.100.200", "fd00:ec2::254", "::ffff:10.0.0.1", "0.0.0.0"]
        {
            assert!(guard.check(address(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn no_more_is_advised_than_what_helps() {
        for text in [
            "10.0.0.1",
            "127.0.0.1",
            "::1",
            "100.64.0.1",
            "fd12::1",
            "169.254.169.254",
            "169.254.1.1",
            "fe80::1",
            "100.100.100.200",
            "fd00:ec2::254",
            "::ffff:10.0.0.1",
            "0.0.0.0",
            "::",
            "192.0.2.1",
            "240.0.0.1",
            "224.0.0.1",
            "ff02::1",
        ] {
            let class = classify(address(text)).unwrap();
            let helps = Guard::default().allow_private(true).check(address(text)).is_ok();
            assert_eq!(class.remedy().contains("allow_private"), helps, "{text}: {}", class.remedy());
            let network = format!("{text}/{}", if text.contains(':') { 128 } else { 32 });
            let opens = Guard::default().allow(network.parse().unwrap()).check(address(text)).is_ok();
            assert!(opens || !class.remedy().contains("`allow`"), "{text}: {}", class.remedy());
        }
    }

    #[test]
    fn a_network_that_is_allowed_opens_itself_and_nothing_else() {
        let guard = Guard::default().allow("10.0.0.0/8".parse().unwrap());
        assert_eq!(guard.check(address("10.1.2.3")), Ok(()));
        assert_eq!(guard.check(address("172.16.0.1")), Err(Class::Private));
        assert_eq!(guard.check(address("::ffff:10.1.2.3")), Err(Class::Embedded));
    }

    #[test]
    fn ports_are_those_of_the_web_and_the_allowed_ones() {
        let guard = Guard::default().allow_port(8443);
        assert!(guard.permits_port(443) && guard.permits_port(8443));
        assert!(!guard.permits_port(80) && !guard.permits_port(22) && !guard.permits_port(6379));
        assert!(guard.allow_http(true).permits_port(80));
    }
}
