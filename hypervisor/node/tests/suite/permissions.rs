//! `deploy/kubernetes` grants what the program asks for, and no more. `UPDATE_DOCS=1` writes it anew.

use std::fs;
use std::path::Path;

use node::PERMISSIONS;

/// The rules of the role, without what a gate has to open.
fn role() -> String {
    let mut rules: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for one in PERMISSIONS.iter().filter(|one| one.gate.is_none()) {
        match rules.iter_mut().find(|rule| (rule.0, rule.1) == (one.group, one.resource)) {
            Some((.., verbs)) => verbs.push(one.verb),
            None => rules.push((one.group, one.resource, vec![one.verb])),
        }
    }
    let mut text = "# Written by a test, from what the program asks for.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: sluice-node
rules:
"
    .to_owned();
    for (group, resource, verbs) in rules {
        let group = if group.is_empty() { "\"\"" } else { group };
        text += &format!(
            "  - apiGroups: [{group}]\n    resources: [{resource}]\n    verbs: [{}]\n",
            verbs.join(", ")
        );
    }
    text
}

#[test]
fn documentation_of_permissions_is_the_role_that_is_deployed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes/base/role.yaml");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, role()).unwrap();
    }
    assert_eq!(fs::read_to_string(path).unwrap(), role(), "UPDATE_DOCS=1 writes it anew");
}
