//! `deploy/kubernetes` grants what the program asks for, and no more. `UPDATE_DOCS=1` writes it anew.

use std::fs;
use std::path::Path;

use node::PERMISSIONS;

/// The chart's role. What a gate needs is granted with the gate.
fn role() -> String {
    let mut rules: Vec<(&str, &str, String)> = Vec::new();
    for one in PERMISSIONS {
        match (
            rules.iter_mut().find(|rule| (rule.0, rule.1) == (one.group, one.resource)),
            one.gate,
        ) {
            (Some((.., verbs)), None) => *verbs += &format!(", {}", one.verb),
            (Some((.., verbs)), Some(gate)) => {
                *verbs += &format!(
                    "{{{{ if .Values.featureGates.{gate:?} }}}}, {}{{{{ end }}}}",
                    one.verb
                );
            }
            (None, None) => rules.push((one.group, one.resource, one.verb.to_owned())),
            (None, Some(gate)) => panic!("{}: nothing without {gate:?}", one.resource),
        }
    }
    let mut text = "# Written by a test, from what the program asks for.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: sluice-node
  labels:
    {{- include \"sluice.labels\" . | nindent 4 }}
rules:
"
    .to_owned();
    for (group, resource, verbs) in rules {
        let group = if group.is_empty() { "\"\"" } else { group };
        text += &format!(
            "  - apiGroups: [{group}]\n    resources: [{resource}]\n    verbs: [{verbs}]\n"
        );
    }
    text
}

#[test]
fn documentation_of_permissions_is_the_role_that_is_deployed() {
    let path = "../../deploy/kubernetes/chart/templates/role.yaml";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, role()).unwrap();
    }
    assert_eq!(fs::read_to_string(path).unwrap(), role(), "UPDATE_DOCS=1 writes it anew");
}
