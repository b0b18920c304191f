//! Which plugins take part, built from names.

use std::collections::HashMap;

use super::framework::Plugin;

/// A profile that cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    #[error("no plugin is registered as {0:?}")]
    Unknown(String),
    #[error("{first} and {second} both sort the queue; only one plugin may")]
    TwoQueueSorts { first: &'static str, second: &'static str },
}

type Factory = Box<dyn Fn() -> Box<dyn Plugin> + Send + Sync>;

/// Plugins by name; a later registration of a name replaces the earlier one.
#[derive(Default)]
pub struct Registry {
    factories: HashMap<&'static str, Factory>,
}

impl Registry {
    pub fn register(
        &mut self,
        name: &'static str,
        factory: impl Fn() -> Box<dyn Plugin> + Send + Sync + 'static,
    ) -> &mut Registry {
        self.factories.insert(name, Box::new(factory));
        self
    }

    /// Builds a profile from plugin names and score weights, in the order in which the plugins run.
    pub fn profile(&self, enabled: &[(&str, i64)]) -> Result<Profile, ProfileError> {
        let mut plugins = Vec::new();
        for (name, weight) in enabled {
            let factory =
                self.factories.get(name).ok_or_else(|| ProfileError::Unknown((*name).to_owned()))?;
            plugins.push(Enabled { plugin: factory(), weight: *weight });
        }
        Profile::new(plugins)
    }
}

/// A plugin and the weight of its score.
pub struct Enabled {
    pub plugin: Box<dyn Plugin>,
    pub weight: i64,
}

/// The enabled plugins in order.
pub struct Profile {
    plugins: Vec<Enabled>,
}

impl Profile {
    pub fn new(plugins: Vec<Enabled>) -> Result<Profile, ProfileError> {
        let mut sorts = plugins.iter().filter(|e| e.plugin.queue_sort().is_some()).map(|e| e.plugin.name());
        if let (Some(first), Some(second)) = (sorts.next(), sorts.next()) {
            return Err(ProfileError::TwoQueueSorts { first, second });
        }
        drop(sorts);
        Ok(Profile { plugins })
    }

    pub fn plugins(&self) -> impl Iterator<Item = &dyn Plugin> {
        self.plugins.iter().map(|enabled| enabled.plugin.as_ref())
    }

    pub fn weighted(&self) -> impl Iterator<Item = (&dyn Plugin, i64)> {
        self.plugins.iter().map(|enabled| (enabled.plugin.as_ref(), enabled.weight))
    }
}
