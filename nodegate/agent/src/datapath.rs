//! What a node's network helper would program: routes to workloads of other nodes, and rules for Services.
//!
//! Nothing is programmed here, but everything is judged as the helpers of deployed nodes judge it: a table is taken
//! as a whole or, for one bad entry, not at all, and then the last one that was taken stays in force. Services are only
//! looked at when the routes were taken. So a test that finds its routes here has shown that a real node
//! would have them.

use std::collections::{BTreeMap, HashSet};
use std::net::Ipv4Addr;

use horchestra_proto::netd::v1::{Route, ServiceRule};
use parking_lot::Mutex;

/// Workloads of other nodes that a helper keeps track of.
const MOST_ROUTES: usize = 65_536;
/// Rules, and members behind all of them.
const MOST_RULES: usize = 4_096;
const MOST_BACKENDS: usize = 65_536;

/// Why a table was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A route that is not to a single IPv4 host, or over no IPv4 address.
    #[error("route {cidr:?} over {node_ip:?} is none that can be programmed")]
    Route {
        /// As it was sent.
        cidr: String,
        /// As it was sent.
        node_ip: String,
    },
    /// A rule that is not one.
    #[error("the rule for {address:?} port {port} is none that can be programmed")]
    Rule {
        /// As it was sent.
        address: String,
        /// As it was sent.
        port: i32,
    },
    /// More entries than there is room for.
    #[error("there are more than {0} entries")]
    Size(usize),
}

/// What a Service's address, port and protocol lead to.
pub type Rules = BTreeMap<(Ipv4Addr, u16, Protocol), Vec<(Ipv4Addr, u16)>>;

/// A protocol that rules exist for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP, also where nothing is said.
    Tcp,
    /// UDP.
    Udp,
}

/// What is in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tables {
    /// Through which node each address is reached. Those of this node are not in it.
    pub routes: BTreeMap<Ipv4Addr, Ipv4Addr>,
    /// By Service.
    pub rules: Rules,
    /// How often a table was refused.
    pub refused: u64,
}

/// The helper of a node.
#[derive(Debug, Default)]
pub struct Datapath {
    own: Mutex<Option<Ipv4Addr>>,
    tables: Mutex<Tables>,
}

impl Datapath {
    /// Says under which address the node itself is known.
    pub fn locate(&self, own: &str) {
        *self.own.lock() = own.parse().ok();
    }

    /// Programs both tables.
    pub fn program(&self, routes: &[Route], services: &[ServiceRule]) -> Result<(), Refused> {
        let judged = judge_routes(routes, *self.own.lock());
        let mut tables = self.tables.lock();
        let refused = |tables: &mut Tables, why| {
            tables.refused += 1;
            Err(why)
        };
        match judged {
            Ok(routes) => tables.routes = routes,
            Err(why) => return refused(&mut tables, why),
        }
        match judge_rules(services) {
            Ok(rules) => tables.rules = rules,
            Err(why) => return refused(&mut tables, why),
        }
        Ok(())
    }

    /// What is in force.
    pub fn tables(&self) -> Tables {
        self.tables.lock().clone()
    }
}

fn judge_routes(routes: &[Route], own: Option<Ipv4Addr>) -> Result<BTreeMap<Ipv4Addr, Ipv4Addr>, Refused> {
    let mut table = BTreeMap::new();
    for Route { cidr, node_ip } in routes {
        let bad = || Refused::Route { cidr: cidr.clone(), node_ip: node_ip.clone() };
        let host: Ipv4Addr = cidr.strip_suffix("/32").unwrap_or(cidr).parse().map_err(|_| bad())?;
        if node_ip.is_empty() {
            continue;
        }
        let via: Ipv4Addr = node_ip.parse().map_err(|_| bad())?;
        if Some(via) != own {
            table.insert(host, via);
        }
    }
    if table.len() > MOST_ROUTES { Err(Refused::Size(MOST_ROUTES)) } else { Ok(table) }
}

fn judge_rules(services: &[ServiceRule]) -> Result<Rules, Refused> {
    let mut rules = Rules::new();
    let mut seen = HashSet::new();
    let mut members = 0;
    for rule in services {
        let bad = || Refused::Rule { address: rule.cluster_ip.clone(), port: rule.port };
        let port = |number: i32| u16::try_from(number).ok().filter(|port| *port > 0).ok_or_else(bad);
        let address = |text: &str| text.parse::<Ipv4Addr>().map_err(|_| bad());
        let protocol = match rule.protocol.as_str() {
            "" | "TCP" => Protocol::Tcp,
            "UDP" => Protocol::Udp,
            _ => return Err(bad()),
        };
        let name = (address(&rule.cluster_ip)?, port(rule.port)?, protocol);
        let backends: Vec<(Ipv4Addr, u16)> = rule
            .backends
            .iter()
            .map(|backend| Ok((address(&backend.address)?, port(backend.port)?)))
            .collect::<Result<_, Refused>>()?;
        if !seen.insert(name) {
            return Err(bad());
        }
        members += backends.len();
        rules.insert(name, backends);
    }
    if rules.len() > MOST_RULES {
        return Err(Refused::Size(MOST_RULES));
    }
    if members > MOST_BACKENDS { Err(Refused::Size(MOST_BACKENDS)) } else { Ok(rules) }
}

#[cfg(test)]
mod tests {
    use horchestra_proto::netd::v1::Backend;

    use super::*;

    fn route(cidr: &str, node_ip: &str) -> Route {
        Route { cidr: cidr.to_owned(), node_ip: node_ip.to_owned() }
    }

    fn rule(address: &str, port: i32, protocol: &str, backends: &[(&str, i32)]) -> ServiceRule {
        let backend = |(address, port): &(&str, i32)| Backend { address: (*address).to_owned(), port: *port };
        ServiceRule {
            cluster_ip: address.to_owned(),
            port,
            protocol: protocol.to_owned(),
            backends: backends.iter().map(backend).collect(),
        }
    }

    #[test]
    fn one_bad_entry_spoils_its_table_and_the_last_good_one_stays() {
        let good =
            [route("10.244.0.1/32", "10.0.0.2"), route("10.244.0.2", "10.0.0.3"), route("10.244.0.3", "")];
        let datapath = Datapath::default();
        datapath.locate("10.0.0.3");
        let service = rule("10.96.0.1", 80, "", &[("10.244.0.1", 8080)]);
        datapath.program(&good, std::slice::from_ref(&service)).expect("programmed");
        let before = datapath.tables();
        let shown: Vec<String> = before.routes.iter().map(|(to, via)| format!("{to} {via}")).collect();
        assert_eq!(shown, ["10.244.0.1 10.0.0.2"], "neither its own nor what leads nowhere");
        assert_eq!(before.rules.len(), 1);
        let bad_routes = [
            route("10.244.1.0/24", "10.0.0.2"),
            route("10.244.1.0/24", ""),
            route("fd00::1/128", "10.0.0.2"),
            route("", "10.0.0.2"),
            route("10.244.1.1/32", "fd00::2"),
            route("10.244.1.1/32", "n2"),
        ];
        for bad in bad_routes {
            let refused = datapath.program(&[good[0].clone(), bad.clone()], &[]);
            assert!(matches!(refused, Err(Refused::Route { .. })), "{bad:?}");
        }
        let bad_rules = [
            rule("fd00::1", 80, "TCP", &[]),
            rule("10.96.0.2", 0, "TCP", &[]),
            rule("10.96.0.2", 65_536, "TCP", &[]),
            rule("10.96.0.2", 80, "SCTP", &[]),
            rule("10.96.0.2", 80, "TCP", &[("fd00::1", 80)]),
            rule("10.96.0.2", 80, "TCP", &[("10.0.0.1", 0)]),
            rule("10.96.0.1", 80, "TCP", &[]),
        ];
        for bad in bad_rules {
            let refused = datapath.program(&good, &[service.clone(), bad.clone()]);
            assert!(matches!(refused, Err(Refused::Rule { .. })), "{bad:?}");
        }
        assert_eq!(datapath.tables(), Tables { refused: 13, ..before });
    }

    #[test]
    fn there_is_room_for_so_many() {
        let routes: Vec<Route> = (0..=MOST_ROUTES)
            .map(|n| route(&Ipv4Addr::from_bits(0x0af4_0000 + n as u32).to_string(), "10.0.0.2"))
            .collect();
        assert_eq!(judge_routes(&routes, None), Err(Refused::Size(MOST_ROUTES)));
        assert_eq!(judge_routes(&routes[1..], None).map(|table| table.len()), Ok(MOST_ROUTES));
        let rules: Vec<ServiceRule> = (1..=4097).map(|port| rule("10.96.0.1", port, "TCP", &[])).collect();
        assert_eq!(judge_rules(&rules), Err(Refused::Size(MOST_RULES)));
        assert!(judge_rules(&rules[1..]).is_ok());
    }
}
