//! Matches allocations with containers: an allocation belongs to the container that the kubelet lists with the same
//! ids. Order and time play no role. No I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use crate::hidden::InUse;
use crate::pool::UnitId;
use crate::proto::pod_resources::PodResources;
use dialects::{Counts, Resource};
use limits::GpuId;

/// A container, by its namespace, pod and container name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Holder {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.pod, self.container)
    }
}

/// The amounts that a container requested, in units of its resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) cores: u64,
    pub(crate) memory: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) holder: Holder,
    pub(crate) places: BTreeSet<String>,
    pub(crate) asked: Asked,
}

impl Listed {
    /// The GPUs of its places, sorted.
    pub(crate) fn gpus(&self) -> Vec<GpuId> {
        let gpus = self.places.iter().filter_map(|id| id.split_once("::")?.0.parse().ok());
        gpus.collect::<BTreeSet<GpuId>>().into_iter().collect()
    }
}

/// A snapshot of the kubelet's list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Containers {
    listed: Vec<Listed>,
    /// Containers without a place. The kubelet lists a pod before it allocates anything to its containers.
    bare: BTreeSet<Holder>,
    /// Indices into `listed`, by place.
    by_place: HashMap<String, Vec<usize>>,
    /// The containers with places.
    have: HashSet<Holder>,
    /// Ids of cores and memory in use, by resource.
    in_use: InUse,
}

/// A contradiction in the kubelet's answers: it allocates an id to one container at a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Mismatch {
    #[error("the kubelet lists these ids for {0} and for {1}")]
    Two(Box<Holder>, Box<Holder>),
    #[error("the kubelet lists some of these ids for {0} and others for {1}")]
    Parted(Box<Holder>, Box<Holder>),
    #[error("the kubelet lists it for {now}, and has listed it for {before}")]
    OtherHolder { before: Box<Holder>, now: Box<Holder> },
}

impl Containers {
    /// Reads the kubelet's answer, as far as it is about these resources.
    pub(crate) fn of(pods: &[PodResources], resources: &[Resource]) -> Self {
        let (mut listed, mut bare) = (Vec::new(), BTreeSet::new());
        let mut by_place: HashMap<String, Vec<usize>> = HashMap::new();
        let mut in_use = InUse::new();
        for pod in pods {
            for container in &pod.containers {
                // The kubelet may report a resource in several parts.
                let mut ids: BTreeMap<Counts, BTreeSet<&str>> = BTreeMap::new();
                for part in &container.devices {
                    let resource = resources.iter().find(|row| row.name == part.resource_name);
                    let Some(resource) = resource else { continue };
                    let known = ids.entry(resource.counts).or_default();
                    known.extend(part.device_ids.iter().map(String::as_str));
                    if !resource.counts.is_place() {
                        in_use
                            .entry(resource.name)
                            .or_default()
                            .extend(part.device_ids.iter().filter_map(|id| UnitId::read(id)));
                    }
                }
                let count = |counts| {
                    let found = ids.get(&counts).map_or(0, BTreeSet::len);
                    u64::try_from(found).unwrap_or(u64::MAX)
                };
                let asked = Asked { cores: count(Counts::Cores), memory: count(Counts::Memory) };
                let places = ids.iter().filter(|(counts, _)| counts.is_place());
                let places: BTreeSet<String> =
                    places.flat_map(|(_, ids)| ids).map(|&id| id.to_owned()).collect();
                let holder = Holder {
                    namespace: pod.namespace.clone(),
                    pod: pod.name.clone(),
                    container: container.name.clone(),
                };
                if places.is_empty() {
                    bare.insert(holder);
                    continue;
                }
                for place in &places {
                    by_place.entry(place.clone()).or_default().push(listed.len());
                }
                listed.push(Listed { holder, places, asked });
            }
        }
        let have = listed.iter().map(|one| one.holder.clone()).collect();
        Self { listed, bare, by_place, have, in_use }
    }

    /// Whether the kubelet has listed no pod at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.bare.is_empty()
    }

    /// Containers without a place, including those that the kubelet is about to give one.
    pub(crate) fn bare(&self) -> &BTreeSet<Holder> {
        &self.bare
    }

    /// The place ids of each container.
    pub(crate) fn places(&self) -> impl Iterator<Item = &BTreeSet<String>> {
        self.listed.iter().map(|listed| &listed.places)
    }

    pub(crate) fn have(&self, holder: &Holder) -> bool {
        self.have.contains(holder)
    }

    /// The container with exactly these ids, if one is listed. Init containers are never listed, and later containers
    /// of the pod may get some or all of their ids.
    pub(crate) fn whose(&self, ids: &BTreeSet<String>) -> Result<Option<&Listed>, Mismatch> {
        let mut exact: Option<&Listed> = None;
        let mut parts: Option<&Listed> = None;
        let with_any = ids.iter().filter_map(|id| self.by_place.get(id)).flatten();
        let with_any: BTreeSet<usize> = with_any.copied().collect();
        for listed in with_any.into_iter().filter_map(|at| self.listed.get(at)) {
            let of =
                |other: &Listed| (Box::new(other.holder.clone()), Box::new(listed.holder.clone()));
            if let Some((one, other)) = exact.map(of) {
                return Err(Mismatch::Two(one, other));
            }
            if let Some(other) = parts
                && (listed.places == *ids || !is_same_pod(other, listed))
            {
                let (one, other) = of(other);
                return Err(Mismatch::Parted(one, other));
            }
            if listed.places == *ids {
                exact = Some(listed);
            } else {
                parts = Some(listed);
            }
        }
        Ok(exact)
    }

    /// Some container with any of these ids.
    pub(crate) fn with_any(&self, ids: &BTreeSet<String>) -> Option<&Listed> {
        let at = ids.iter().find_map(|id| self.by_place.get(id)?.first())?;
        self.listed.get(*at)
    }

    /// Checks that these ids still belong to `before`, given that nothing was allocated since.
    pub(crate) fn check_holder(
        &self,
        ids: &BTreeSet<String>,
        before: &Holder,
    ) -> Result<(), Mismatch> {
        match self.whose(ids)? {
            Some(listed) if listed.holder != *before => {
                let (before, now) = (Box::new(before.clone()), Box::new(listed.holder.clone()));
                Err(Mismatch::OtherHolder { before, now })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn of_pod(&self, holder: &Holder) -> impl Iterator<Item = &Listed> {
        let is_its = |listed: &&Listed| {
            (&listed.holder.namespace, &listed.holder.pod) == (&holder.namespace, &holder.pod)
        };
        self.listed.iter().filter(is_its)
    }

    /// Ids of cores and memory in use, by resource.
    pub(crate) fn in_use(&self) -> &InUse {
        &self.in_use
    }

    pub(crate) fn have_any(&self, ids: &BTreeSet<String>) -> bool {
        ids.iter().any(|id| self.by_place.contains_key(id))
    }
}

fn is_same_pod(one: &Listed, other: &Listed) -> bool {
    (&one.holder.namespace, &one.holder.pod) == (&other.holder.namespace, &other.holder.pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::pod_resources::{ContainerDevices, ContainerResources};
    use dialects::table::RESOURCES;
    use proptest::prelude::*;

    fn devices(resource: &str, ids: &[&str]) -> ContainerDevices {
        let device_ids = ids.iter().map(|&id| id.to_owned()).collect();
        ContainerDevices { resource_name: resource.to_owned(), device_ids }
    }

    fn pod(name: &str, containers: Vec<(&str, Vec<ContainerDevices>)>) -> PodResources {
        let one =
            |(name, devices): (&str, _)| ContainerResources { name: name.to_owned(), devices };
        PodResources {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            containers: containers.into_iter().map(one).collect(),
        }
    }

    fn places(ids: &[&str]) -> Vec<ContainerDevices> {
        vec![devices("nvidia.com/vgpu-number", ids)]
    }

    fn set(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|&id| id.to_owned()).collect()
    }

    fn whose(pods: &[PodResources], ids: &[&str]) -> Result<Option<String>, String> {
        let all = Containers::of(pods, &RESOURCES);
        let found = all.whose(&set(ids)).map_err(|mismatch| mismatch.to_string())?;
        Ok(found.map(|listed| listed.holder.to_string()))
    }

    #[test]
    fn a_container_is_found_by_its_ids_and_what_it_asked_for_is_counted() {
        let first = vec![
            devices("nvidia.com/vgpu-memory", &["m0", "m1"]),
            devices("nvidia.com/vgpu-number", &["b"]),
            devices("example.com/other", &["x"]),
            // Reported per NUMA node, and partly twice.
            devices("nvidia.com/vgpu-number", &["a"]),
            devices("nvidia.com/vgpu-memory", &["m1", "m2"]),
            devices("nvidia.com/vgpu-cores", &["c7"]),
        ];
        let pods = [pod("p", vec![("first", first), ("second", places(&["c"]))])];
        let all = Containers::of(&pods, &RESOURCES);
        let found = all.whose(&set(&["a", "b"])).unwrap().unwrap();
        assert_eq!(found.holder.to_string(), "default/p/first");
        assert_eq!(found.asked, Asked { cores: 1, memory: 3 });
        assert_eq!(whose(&pods, &["c"]), Ok(Some("default/p/second".to_owned())));
        assert_eq!(whose(&pods, &["d"]), Ok(None));
        assert!(all.have_any(&set(&["d", "a"])) && !all.have_any(&set(&["d"])));
    }

    /// The kubelet reuses an init container's ids for the pod's later containers, and does not list init containers.
    #[test]
    fn ids_of_an_init_container_are_not_taken_for_another_containers() {
        let pods = [pod("p", vec![("first", places(&["a"])), ("second", places(&["b"]))])];
        assert_eq!(whose(&pods, &["a", "b"]), Ok(None));
        assert_eq!(whose(&pods, &["a", "c"]), Ok(None));
        let pods = [pod("p", vec![("first", places(&["a", "b"]))])];
        assert_eq!(whose(&pods, &["a"]), Ok(None));
        assert_eq!(whose(&pods, &["a", "b"]), Ok(Some("default/p/first".to_owned())));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let two = [pod("p", vec![("c", places(&["a"]))]), pod("q", vec![("c", places(&["a"]))])];
        let said = "the kubelet lists these ids for default/p/c and for default/q/c";
        assert_eq!(whose(&two, &["a"]), Err(said.to_owned()));
        let parted = [pod("p", vec![("c", places(&["a"]))]), pod("q", vec![("c", places(&["b"]))])];
        let said = "the kubelet lists some of these ids for default/p/c and others for default/q/c";
        assert_eq!(whose(&parted, &["a", "b"]), Err(said.to_owned()));
        let within = [pod("p", vec![("c", places(&["a", "b"])), ("d", places(&["a"]))])];
        assert!(whose(&within, &["a"]).is_err());
    }

    proptest! {
        /// Whatever the order of containers and ids, each container is found by its own ids only.
        #[test]
        fn each_is_found_by_its_own_ids(
            sizes in prop::collection::vec(1_usize..4, 1..12), turn in 0_usize..12, wrong in 0_usize..12,
        ) {
            let ids = |number: usize| -> Vec<String> {
                (0..sizes[number]).map(|place| format!("{number}-{place}")).collect()
            };
            let mut pods: Vec<PodResources> = (0..sizes.len()).map(|number| {
                let ids = ids(number);
                let parts = ids.iter().map(|id| devices("nvidia.com/vgpu-number", &[id])).collect();
                pod(&format!("p{}", number / 2), vec![(&format!("c{number}"), parts)])
            }).collect();
            let length = pods.len();
            pods.rotate_left(turn % length);
            let all = Containers::of(&pods, &RESOURCES);
            for number in 0..length {
                let own: BTreeSet<String> = ids(number).into_iter().collect();
                let found = all.whose(&own).unwrap().unwrap();
                prop_assert_eq!(&found.holder.container, &format!("c{number}"));
                let mut more = own;
                more.extend(ids(wrong % length));
                let found = all.whose(&more).ok().flatten().map(|found| found.holder.container.clone());
                prop_assert_eq!(found.is_some(), wrong % length == number);
            }
        }
    }
}
