//! Which network addresses a request may be sent to.
//!
//! An address that is not publicly routable is refused unless the rule that grants the request names a range with that
//! address in it. This module judges one address at a time; it resolves no names and opens no connections. Whoever
//! dials must ask about the very address it dials.
//!
//! An IPv6 address that carries an IPv4 address inside (mapped, translated, tunnelled) is refused as what it is written
//! as: a rule that names `127.0.0.0/8` does not open `::ffff:127.0.0.1`.
//!
//! The ranges are those of the IANA special-purpose address registries (RFC 6890, RFC 8190 and the documents that each
//! entry names), and the addresses at which cloud platforms serve credentials to whoever asks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// In the order of reporting: a single address before the range that it lies in.
const REFUSED_V4: &[(Ipv4Net, &str)] = &[
    (v4([169, 254, 169, 254], 32), "a cloud metadata service"),
    (v4([168, 63, 129, 16], 32), "a cloud metadata service"), // Azure: a public number, served inside the host alone
    (v4([0, 0, 0, 0], 32), "unspecified"),                    // RFC 1122
    (v4([255, 255, 255, 255], 32), "broadcast"),              // RFC 919
    (v4([0, 0, 0, 0], 8), "on this network"),                 // RFC 791
    (v4([10, 0, 0, 0], 8), "private"),                        // RFC 1918
    (v4([100, 64, 0, 0], 10), "inside a carrier's network"),  // RFC 6598
    (v4([127, 0, 0, 0], 8), "loopback"),                      // RFC 1122
    (v4([169, 254, 0, 0], 16), "link-local"),                 // RFC 3927
    (v4([172, 16, 0, 0], 12), "private"),                     // RFC 1918
    (v4([192, 0, 0, 0], 24), "reserved for protocols"),       // RFC 6890
    (v4([192, 0, 2, 0], 24), "for documentation"),            // RFC 5737
    (v4([192, 88, 99, 0], 24), "a 6to4 relay"),               // RFC 7526
    (v4([192, 168, 0, 0], 16), "private"),                    // RFC 1918
    (v4([198, 18, 0, 0], 15), "for benchmarking"),            // RFC 2544
    (v4([198, 51, 100, 0], 24), "for documentation"),         // RFC 5737
    (v4([203, 0, 113, 0], 24), "for documentation"),          // RFC 5737
    (v4([224, 0, 0, 0], 4), "multicast"),                     // RFC 5771
    (v4([240, 0, 0, 0], 4), "reserved"),                      // RFC 1112
];

/// As above. Whatever lies outside 2000::/3 is refused by [`GLOBAL_UNICAST`] too; it is here to be named.
const REFUSED_V6: &[(Ipv6Net, &str)] = &[
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128), "a cloud metadata service"),
    (v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), "a cloud metadata service"),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), "unspecified"),     // RFC 4291
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), "loopback"),        // RFC 4291
    (v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96), "IPv4-mapped"), // RFC 4291
    (v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96), "IPv4-translated"), // RFC 2765
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 96), "IPv4-compatible"),  // RFC 4291
    (v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96), "NAT64"),    // RFC 6052
    (v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48), "NAT64"),    // RFC 8215
    (v6([0x100, 0, 0, 0, 0, 0, 0, 0], 64), "for discarding"), // RFC 6666
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32), "Teredo"),      // RFC 4380
    (v6([0x2001, 2, 0, 0, 0, 0, 0, 0], 48), "for benchmarking"), // RFC 5180
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), "reserved for protocols"), // RFC 2928
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), "for documentation"), // RFC 3849
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), "6to4"),        // RFC 3056
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), "for documentation"), // RFC 9637
    (v6([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16), "for segment routing"), // RFC 9602
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), "unique local"), // RFC 4193
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "link-local"),  // RFC 4291
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), "site-local"),  // RFC 3879
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "multicast"),    // RFC 4291
];

/// The only part of IPv6 from which addresses on the public network are given out (RFC 4291, section 2.4).
const GLOBAL_UNICAST: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

/// Why a request may not be sent to `ip`: what kind of address it is, as in "it is loopback". `None` where it may,
/// because the address is publicly routable or one of the `allowed` ranges holds it.
///
/// A range holds only addresses of its own family, as they are written.
///
/// ```
/// use tollgate::egress::address::refused;
///
/// let metadata = "169.254.169.254".parse()?;
/// assert_eq!(refused(metadata, &[]), Some("a cloud metadata service"));
/// assert_eq!(refused("127.0.0.1".parse()?, &["127.0.0.0/8".parse()?]), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn refused(ip: IpAddr, allowed: &[IpNet]) -> Option<&'static str> {
    if allowed.iter().any(|range| range.contains(&ip)) {
        return None;
    }
    match ip {
        IpAddr::V4(ip) => REFUSED_V4.iter().find(|(range, _)| range.contains(&ip)).map(|(_, kind)| *kind),
        IpAddr::V6(ip) => match REFUSED_V6.iter().find(|(range, _)| range.contains(&ip)) {
            Some((_, kind)) => Some(kind),
            None if GLOBAL_UNICAST.contains(&ip) => None,
            None => Some("not allocated"),
        },
    }
}

/// Whether allowing `range` makes any difference: whether it holds an address that would otherwise be refused.
pub fn opens(range: &IpNet) -> bool {
    match range {
        IpNet::V4(range) => REFUSED_V4.iter().any(|(refused, _)| refused.contains(range) || range.contains(refused)),
        IpNet::V6(range) => {
            !GLOBAL_UNICAST.contains(range)
                || REFUSED_V6.iter().any(|(refused, _)| refused.contains(range) || range.contains(refused))
        }
    }
}

const fn v4(octets: [u8; 4], prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::from_octets(octets), prefix)
}

const fn v6(segments: [u16; 8], prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::from_segments(segments), prefix)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(ip: &str, allowed: &[&str], expected: Option<&str>) {
        let allowed: Vec<IpNet> = allowed.iter().map(|range| range.parse().unwrap()).collect();
        assert_eq!(refused(ip.parse().unwrap(), &allowed), expected, "{ip} with {allowed:?}");
    }

    #[test]
    fn what_is_not_publicly_routable_is_refused_by_name() {
        for (ip, kind) in [
            ("0.0.0.0", "unspecified"),
            ("0.1.2.3", "on this network"),
            ("10.0.0.0", "private"),
            ("10.255.255.255", "private"),
            ("100.64.0.1", "inside a carrier's network"),
            ("100.127.255.255", "inside a carrier's network"),
            ("127.0.0.1", "loopback"),
            ("127.255.255.254", "loopback"),
            ("168.63.129.16", "a cloud metadata service"),
            ("169.254.0.1", "link-local"),
            ("169.254.169.254", "a cloud metadata service"),
            ("169.254.170.2", "link-local"),
            ("172.16.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.0.0.192", "reserved for protocols"),
            ("192.0.2.1", "for documentation"),
            ("192.88.99.1", "a 6to4 relay"),
            ("192.168.1.1", "private"),
            ("198.18.0.1", "for benchmarking"),
            ("198.19.255.255", "for benchmarking"),
            ("198.51.100.7", "for documentation"),
            ("203.0.113.7", "for documentation"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.255", "multicast"),
            ("240.0.0.1", "reserved"),
            ("255.255.255.254", "reserved"),
            ("255.255.255.255", "broadcast"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("::2", "IPv4-compatible"),
            ("::127.0.0.1", "IPv4-compatible"),
            ("::ffff:127.0.0.1", "IPv4-mapped"),
            ("::ffff:8.8.8.8", "IPv4-mapped"),
            ("::ffff:0:8.8.8.8", "IPv4-translated"),
            ("64:ff9b::8.8.8.8", "NAT64"),
            ("64:ff9b::169.254.169.254", "NAT64"),
            ("64:ff9b:1::1", "NAT64"),
            ("100::1", "for discarding"),
            ("2001::1", "Teredo"),
            ("2001:2::1", "for benchmarking"),
            ("2001:10::1", "reserved for protocols"),
            ("2001:1ff:ffff::1", "reserved for protocols"),
            ("2001:db8::1", "for documentation"),
            ("2002:7f00:1::", "6to4"),
            ("2002:808:808::1", "6to4"),
            ("3fff:fff::1", "for documentation"),
            ("5f00::1", "for segment routing"),
            ("fc00::1", "unique local"),
            ("fd00:ec2::254", "a cloud metadata service"),
            ("fd20:ce::254", "a cloud metadata service"),
            ("fd12:3456::1", "unique local"),
            ("fe80::1", "link-local"),
            ("febf::1", "link-local"),
            ("fec0::1", "site-local"),
            ("ff02::1", "multicast"),
            ("100:0:0:1::1", "not allocated"),
            ("1::1", "not allocated"),
            ("4000::1", "not allocated"),
            ("e000::1", "not allocated"),
        ] {
            check(ip, &[], Some(kind));
            assert!(opens(&IpNet::from(ip.parse::<IpAddr>().unwrap())), "naming {ip} makes a difference");
        }
    }

    #[test]
    fn what_is_publicly_routable_passes() {
        for ip in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2600::1",
            "2a00:1450::1",
        ] {
            check(ip, &[], None);
            assert!(!opens(&IpNet::from(ip.parse::<IpAddr>().unwrap())), "naming {ip} makes no difference");
        }
    }

    #[test]
    fn a_named_range_opens_what_it_holds_as_it_is_written() {
        check("127.0.0.1", &["127.0.0.0/8"], None);
        check("127.0.0.1", &["10.0.0.0/8", "127.0.0.1/32"], None);
        check("127.0.0.2", &["127.0.0.1/32"], Some("loopback"));
        check("10.1.2.3", &["127.0.0.0/8"], Some("private"));
        check("::1", &["127.0.0.0/8"], Some("loopback"));
        check("::1", &["::1/128"], None);
        // What is embedded does not count: a range of IPv4 opens no IPv6 address.
        check("::ffff:127.0.0.1", &["127.0.0.0/8"], Some("IPv4-mapped"));
        check("::ffff:127.0.0.1", &["::ffff:127.0.0.0/104"], None);
        check("64:ff9b::10.0.0.1", &["10.0.0.0/8"], Some("NAT64"));
        check("64:ff9b::10.0.0.1", &["64:ff9b::/96"], None);
        check("169.254.169.254", &["169.254.0.0/16"], None);
        check("8.8.8.8", &["127.0.0.0/8"], None);
    }

    #[test]
    fn a_range_of_public_addresses_opens_nothing() {
        for (range, expected) in [
            ("8.8.8.0/24", false),
            ("0.0.0.0/0", true),
            ("8.0.0.0/6", true), // holds 10.0.0.0/8
            ("2600::/12", false),
            ("2001:4860::/32", false),
            ("2000::/3", true), // holds documentation
            ("::/0", true),
            ("4000::/3", true),
        ] {
            assert_eq!(opens(&range.parse().unwrap()), expected, "{range}");
        }
    }

    proptest! {
        // The standard library has its own opinion on the common kinds: what it calls such is never let through.
        #[test]
        fn agrees_with_the_standard_library(bits in any::<u32>()) {
            let ip = Ipv4Addr::from_bits(bits);
            let special = ip.is_private() || ip.is_loopback() || ip.is_link_local() || ip.is_multicast()
                || ip.is_broadcast() || ip.is_unspecified() || ip.is_documentation();
            prop_assert!(!special || refused(IpAddr::V4(ip), &[]).is_some());
        }

        #[test]
        fn no_ipv6_form_of_an_ipv4_address_passes(bits in any::<u32>()) {
            let ip = Ipv4Addr::from_bits(bits);
            let octets = u128::from(bits);
            let forms = [
                ip.to_ipv6_mapped(),
                ip.to_ipv6_compatible(),
                Ipv6Addr::from_bits(0x64_ff9b << 96 | octets),
                Ipv6Addr::from_bits(0x2002 << 112 | octets << 80),
                Ipv6Addr::from_bits(0x2001 << 112 | !octets & 0xffff_ffff),
            ];
            for form in forms {
                prop_assert!(refused(IpAddr::V6(form), &["0.0.0.0/0".parse().unwrap()]).is_some(), "{}", form);
            }
        }

        #[test]
        fn a_range_that_opens_nothing_changes_no_answer(bits in any::<u32>(), prefix in 0_u8..=32) {
            let range = IpNet::V4(Ipv4Net::new(Ipv4Addr::from_bits(bits), prefix).unwrap().trunc());
            let ip = IpAddr::V4(Ipv4Addr::from_bits(bits));
            prop_assert!(opens(&range) || refused(ip, &[]) == refused(ip, &[range]));
        }
    }
}
