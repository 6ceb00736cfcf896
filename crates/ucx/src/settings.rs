//! Which transports and devices UCX may use.

/// What UCX is told beyond its environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transports(pub(crate) Vec<(&'static str, &'static str)>);

/// Transports that reach nobody outside this host when their device is the loopback.
const LOCAL: [&str; 9] = ["self", "sm", "shm", "mm", "posix", "sysv", "cma", "xpmem", "tcp"];

impl Transports {
    /// A job on one host keeps to shared memory and the loopback, unless the user has decided otherwise.
    ///
    /// `transports` and `devices` are `UCX_TLS` and `UCX_NET_DEVICES`. With transports that need a network device (`rc`, `all`) UCX chooses among
    /// all devices.
    pub(crate) fn choose(one_host: bool, transports: Option<&str>, devices: Option<&str>) -> Transports {
        let mut set = Vec::new();
        if one_host && devices.is_none() {
            match transports {
                None => set.extend([("TLS", "self,shm,tcp"), ("NET_DEVICES", "lo")]),
                Some(list) if list.split(',').all(|name| LOCAL.contains(&name.trim())) => {
                    set.push(("NET_DEVICES", "lo"))
                }
                Some(_) => {}
            }
        }
        Transports(set)
    }

    pub(crate) fn from_env(one_host: bool) -> Transports {
        let read = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Transports::choose(one_host, read("UCX_TLS").as_deref(), read("UCX_NET_DEVICES").as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_stays_on_itself_unless_told_otherwise() {
        let chosen = |one_host, tls, devices| Transports::choose(one_host, tls, devices).0;
        let loopback = ("NET_DEVICES", "lo");
        assert_eq!(chosen(true, None, None), [("TLS", "self,shm,tcp"), loopback]);
        assert_eq!(chosen(true, Some("tcp"), None), [loopback]);
        assert_eq!(chosen(true, Some("shm, self"), None), [loopback]);
        for (one_host, tls, devices) in [
            (true, Some("rc,self"), None),
            (true, Some("^cma"), None),
            (true, None, Some("eth0")),
            (true, Some("tcp"), Some("all")),
            (false, None, None),
            (false, Some("tcp"), None),
        ] {
            assert_eq!(chosen(one_host, tls, devices), [], "{one_host} {tls:?} {devices:?}");
        }
    }
}
