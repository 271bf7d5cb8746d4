use super::*;
use dialects::table::RESOURCES;
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Golden {
    rule: String,
    dialects: Vec<String>,
    scheduler: Option<String>,
    runtime_class: Option<String>,
    pod: Value,
    patch: Value,
    refused: Option<String>,
}

fn pod(value: &Value) -> Pod {
    serde_json::from_value(value.clone()).unwrap()
}

fn patched(pod: &Value, patch: &Value) -> Value {
    let mut pod = pod.clone();
    let patch: json_patch::Patch = serde_json::from_value(patch.clone()).unwrap();
    json_patch::patch(&mut pod, &patch).unwrap();
    pod
}

#[test]
fn each_rule_gives_its_patch_once_or_says_what_is_accepted() {
    let goldens: Vec<Golden> = serde_saphyr::from_str(include_str!("rules.golden.yaml")).unwrap();
    assert!(goldens.len() > 20);
    for golden in goldens {
        let (rule, scheduler) = (golden.rule, golden.scheduler);
        let dialects = golden.dialects.iter().map(|name| name.parse().unwrap()).collect();
        let (runtime_class, names) = (golden.runtime_class, ResourceNames::default());
        let rules = Rules { dialects, scheduler, runtime_class, names };
        let patch = json!(defaults(&pod(&golden.pod), &rules));
        assert_eq!(patch, golden.patch, "{rule}");
        let complete = pod(&patched(&golden.pod, &patch));
        assert_eq!(defaults(&complete, &rules), [], "{rule}: a second time");
        let refused = check(&complete, &rules).err().map(|refusal| refusal.to_string());
        assert_eq!(refused, golden.refused, "{rule}");
    }
}

#[test]
fn pods_are_completed_and_checked_by_the_clusters_names() {
    let names = "nvidia.com/vgpu-number=example.com/gpu".parse().unwrap();
    let rules = Rules { dialects: vec![Dialect::VgpuManager], names, ..Rules::default() };
    let with = |limits: Value| {
        pod(&json!({"spec": {"containers": [{"name": "m", "resources": {"limits": limits}}]}}))
    };
    let path = "/spec/containers/0/resources/limits/example.com~1gpu";
    let patch = json!(defaults(&with(json!({"nvidia.com/vgpu-cores": "30"})), &rules));
    assert_eq!(patch, json!([{"op": "add", "path": path, "value": "1"}]));
    let too_many = with(json!({"example.com/gpu": "1", "nvidia.com/vgpu-cores": "300"}));
    assert!(check(&too_many, &rules).is_err());
    // Somebody else's by now.
    assert_eq!(check(&with(json!({"nvidia.com/vgpu-number": "x"})), &rules), Ok(()));
}

/// What reaches the second webhook past the first one.
#[test]
fn a_node_that_is_still_named_is_refused() {
    let rules = Rules {
        dialects: vec![Dialect::VgpuManager],
        scheduler: Some("vgpu-scheduler".into()),
        runtime_class: None,
        names: ResourceNames::default(),
    };
    let limits = json!({"nvidia.com/vgpu-number": "1"});
    let named = json!({"spec": {"nodeName": "a", "containers": [{"name": "m", "resources": {"limits": limits}}]}});
    assert_eq!(
        check(&pod(&named), &rules).unwrap_err().to_string(),
        "spec.nodeName \"a\" bypasses the scheduler \"vgpu-scheduler\", which assigns GPUs; expected the node selector kubernetes.io/hostname: a"
    );
}

/// An API server that meets a name which is missing there does not ask, and the pod stays as it is.
#[test]
fn the_charts_match_conditions_name_each_resource() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/kubernetes/chart/templates/_helpers.tpl"
    );
    let text = std::fs::read_to_string(path).unwrap();
    let said: Vec<&str> = text.split([' ', '"', '\n']).collect();
    let words = WORDS.iter().filter(|(_, word, _)| !word.is_annotation());
    let names = words.map(|(.., name)| *name).chain(RESOURCES.iter().map(|row| row.name));
    for name in names.filter(|name| !name.starts_with("tensor-fusion.ai/index")) {
        assert!(said.contains(&name), "{name}");
    }
    assert!(text.contains("name.startsWith('tensor-fusion.ai/index')"));
}

fn any_limits() -> impl Strategy<Value = Value> {
    let names: Vec<&str> = WORDS.iter().map(|(.., name)| *name).collect();
    let amount =
        prop_oneof![Just("0"), Just("1"), Just("100"), Just("101"), Just("2k"), Just("5m")];
    let limits = proptest::collection::btree_map(proptest::sample::select(names), amount, 0..5);
    (limits, any::<bool>()).prop_map(|(limits, requested)| match requested {
        true => json!({"limits": limits, "requests": limits}),
        false => json!({"limits": limits}),
    })
}

proptest! {
    #[test]
    fn any_pod_is_completed_once(
        resources in proptest::collection::vec(any_limits(), 1..4),
        scheduler in proptest::option::of("vgpu-scheduler|default-scheduler|other"),
        node in proptest::option::of("a|b"),
        selected in proptest::option::of("a|b"),
        known in any::<bool>(),
    ) {
        let containers: Vec<Value> = resources
            .iter()
            .enumerate()
            .map(|(at, resources)| json!({"name": format!("c{at}"), "resources": resources}))
            .collect();
        let mut spec = json!({"containers": containers});
        spec["schedulerName"] = json!(scheduler);
        spec["nodeName"] = json!(node);
        if let Some(node) = selected {
            spec["nodeSelector"] = json!({HOSTNAME: node});
        }
        let before = json!({"spec": spec});
        let rules = Rules {
            dialects: Dialect::ALL.to_vec(),
            scheduler: known.then(|| "vgpu-scheduler".to_owned()),
            runtime_class: Some("nvidia".into()),
            names: ResourceNames::default(),
        };
        let patch = json!(defaults(&pod(&before), &rules));
        let after = pod(&patched(&before, &patch));
        prop_assert_eq!(defaults(&after, &rules), []);
        if let Err(refusal) = check(&after, &rules) {
            prop_assert!(refusal.to_string().contains("; expected "));
        }
    }
}
