//! The names of pods' containers, taken from the kubelet's log links, `POD_NAMESPACE_CONTAINER-ID.log`. None of the
//! names contains an underscore. Only root creates these links, so containers cannot forge them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

/// The kubelet's folder of log links.
pub const FOLDER: &str = "var/log/containers";
/// The most links to read; a node has fewer.
const MOST: usize = 16_384;

/// A container's name in Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodContainer {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name.
    pub container: String,
}

impl fmt::Display for PodContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.pod, self.container)
    }
}

/// The node's containers by id; empty without such a folder.
#[must_use]
pub fn all(folder: &Path) -> BTreeMap<String, PodContainer> {
    let links = fs::read_dir(folder).into_iter().flatten().flatten().take(MOST);
    let links = links.filter_map(|entry| entry.file_name().into_string().ok());
    links.filter_map(|name| read(&name)).collect()
}

fn read(link: &str) -> Option<(String, PodContainer)> {
    let (names, id) = link.strip_suffix(".log")?.rsplit_once('-')?;
    let mut parts = names.split('_').map(ToOwned::to_owned);
    let (pod, namespace, container) = (parts.next()?, parts.next()?, parts.next()?);
    let is_all = parts.next().is_none() && !id.is_empty();
    is_all.then(|| (id.to_owned(), PodContainer { namespace, pod, container }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_links_name_tells_the_container() {
        let (id, found) = read("web-7_shop_main-part-ab12.log").unwrap();
        assert_eq!((id.as_str(), found.to_string().as_str()), ("ab12", "shop/web-7/main-part"));
        for other in ["odd-ee.log", "a_b_c_d-ee.log", "a_b_c-.log", "a_b_c.log", "a_b_c-ee"] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
