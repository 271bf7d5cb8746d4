//! The names of pods' containers, as the names of the logs that kubelets keep: a link POD_NAMESPACE_CONTAINER-ID.log for
//! each. None of the names has an underscore. Only root makes such links, so they are no container's own words.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

/// Where kubelets keep them.
pub const FOLDER: &str = "var/log/containers";
/// A node has fewer.
const MOST: usize = 16_384;

/// A container, as people know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodContainer {
    /// Its pod's namespace.
    pub namespace: String,
    /// Its pod.
    pub pod: String,
    /// Its own name.
    pub container: String,
}

impl fmt::Display for PodContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.pod, self.container)
    }
}

/// Those of the node, by id. Without such a folder there are none.
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
