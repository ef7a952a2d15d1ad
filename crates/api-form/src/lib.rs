//! Derives the form that a type of the log has in the API, and the names of variants ([`Named`]). [`ApiForm`] makes for `Signal` the type `SignalJson<'a>`, which serialises and has a schema,
//! and `From<&'a Signal>`. An enum becomes objects with a `type`, the variant's name on the wire in snake_case.
//!
//! The docs of variants and fields are the descriptions in the schema; fields with a name of [`COMMON_DOCS`] need none. A field is
//! always present, and a time is text. Attributes say where the API differs from the log:
//!
//! | attribute | of | the API has |
//! |---|---|---|
//! | `#[api(name = "x")]` | a type, variant or field | another name |
//! | `#[api(skip)]` | a field | no such field |
//! | `#[api(optional)]` | a field | no such field where the log has none |
//! | `#[api(form(TYPE), value(EXPRESSION))]` | a field | a value of this type; without `value`, it is converted from the field |
//! | `#[api(flatten)]` | a field | the fields of its value, as for the value of a variant without names |
//! | `#[api(before(NAME: TYPE = EXPRESSION))]` | a field | one more field before it |

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::{
    Attribute, Data, DeriveInput, Error, Field, Fields, Ident, LitStr, Result, Token, Type, parenthesized,
};

/// The descriptions of fields without docs, by their names.
const COMMON_DOCS: [(&str, &str); 9] = [
    ("task", "The task."),
    ("attempt", "The attempt."),
    ("turn", "The turn."),
    ("worker", "The process."),
    ("reason", "The reason."),
    ("detail", "Details for a person."),
    ("error", "The error."),
    ("usage", "The usage."),
    ("models", "The usage by model."),
];

/// Derives the form of a type in the API.
#[proc_macro_derive(ApiForm, attributes(api))]
pub fn derive_api_form(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Derives the function `name`, which returns the name of a variant in JSON, in snake_case, and the list `ALL` of an enum whose
/// variants have no fields.
#[proc_macro_derive(Named)]
pub fn derive_named(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    let name = &input.ident;
    let Data::Enum(data) = &input.data else {
        return Error::new(name.span(), "only variants have names").into_compile_error().into();
    };
    let variants: Vec<&Ident> = data.variants.iter().map(|variant| &variant.ident).collect();
    let names = variants.iter().map(|variant| snake_case(&variant.to_string()));
    let is_plain = data.variants.iter().all(|variant| variant.fields.is_empty());
    let (count, receiver) = (variants.len(), if is_plain { quote!(self) } else { quote!(&self) });
    let all = is_plain.then(|| {
        quote! {
            /// All of them, in the order of their declaration.
            pub const ALL: [Self; #count] = [#(Self::#variants),*];
        }
    });
    let named = quote! {
        impl #name {
            #all

            /// Its name, as in JSON.
            #[must_use]
            pub const fn name(#receiver) -> &'static str {
                match self {
                    #(Self::#variants { .. } => #names),*
                }
            }
        }
    };
    named.into()
}

fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let name = &input.ident;
    let form = match ApiAttributes::read(&input.attrs)?.name {
        Some(form) => form.parse()?,
        None => format_ident!("{name}Json"),
    };
    let docs = docs_of(&input.attrs);
    let (keyword, tag, declared, value) = match &input.data {
        Data::Struct(data) => {
            let (pattern, fields, values) = expand_fields(&data.fields, &quote!(pub))?;
            let value = quote!({ let #name #pattern = value; Self { #(#values),* } });
            (quote!(struct), None, quote!({ #(#fields),* }), value)
        }
        Data::Enum(data) => {
            let (mut variants, mut arms) = (Vec::new(), Vec::new());
            for variant in &data.variants {
                let (ident, docs) = (&variant.ident, docs_of(&variant.attrs));
                let wire_name = serde_text(&variant.attrs, "rename")?.unwrap_or_else(|| ident.to_string());
                let api_name = ApiAttributes::read(&variant.attrs)?.name.map(|name| name.value());
                let api_name = api_name.unwrap_or_else(|| snake_case(&wire_name));
                let (pattern, fields, values) = expand_fields(&variant.fields, &quote!())?;
                variants.push(quote!(#(#docs)* #[serde(rename = #api_name)] #ident { #(#fields),* }));
                arms.push(quote!(#name::#ident #pattern => Self::#ident { #(#values),* }));
            }
            let tag = quote!(#[serde(tag = "type")]);
            (quote!(enum), Some(tag), quote!({ #(#variants),* }), quote!(match value { #(#arms),* }))
        }
        Data::Union(_) => return Err(Error::new(Span::call_site(), "a union has no form in the API")),
    };
    let lifetime = declared.to_string().contains("'a").then(|| quote!(<'a>));
    Ok(quote! {
        #(#docs)*
        #[derive(Debug, ::serde::Serialize, ::schemars::JsonSchema)]
        #tag
        pub #keyword #form #lifetime #declared

        impl<'a> ::core::convert::From<&'a #name> for #form #lifetime {
            #[allow(unused_variables, reason = "a form may leave fields out")]
            fn from(value: &'a #name) -> Self {
                #value
            }
        }
    })
}

/// Returns the pattern that takes a value apart, and the declarations and values of the form's fields.
fn expand_fields(
    fields: &Fields,
    public: &TokenStream,
) -> Result<(TokenStream, Vec<TokenStream>, Vec<TokenStream>)> {
    let (mut names, mut declared, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for field in fields {
        let name = field.ident.clone().unwrap_or_else(|| format_ident!("inner"));
        let attributes = ApiAttributes::read(&field.attrs)?;
        if let Some(ExtraField { docs, name, form, value }) = &attributes.before {
            let docs = docs_or_common(docs, name)?;
            declared.push(quote!(#docs #public #name: #form));
            values.push(quote!(#name: #value));
        }
        if !attributes.is_skipped {
            let (declaration, value) = expand_field(field, &name, &attributes, public)?;
            declared.push(declaration);
            values.push(quote!(#name: #value));
        }
        names.push(name);
    }
    let pattern = match fields {
        Fields::Named(_) => quote!({ #(#names),* }),
        Fields::Unnamed(_) => quote!((#(#names),*)),
        Fields::Unit => quote!(),
    };
    Ok((pattern, declared, values))
}

/// Returns the declaration of a form's field, and its value.
fn expand_field(
    field: &Field,
    name: &Ident,
    attributes: &ApiAttributes,
    public: &TokenStream,
) -> Result<(TokenStream, TokenStream)> {
    let field_type = &field.ty;
    let rename = attributes.name.as_ref().map(|name| quote!(#[serde(rename = #name)]));
    let is_flat = attributes.is_flat || (field.ident.is_none() && rename.is_none());
    let docs = match is_flat {
        true => quote!(#[serde(flatten)]),
        false => docs_or_common(&docs_of(&field.attrs), name)?,
    };
    // A time has the schema of the API, wherever it stands in the type.
    let text = quote!(#field_type).to_string();
    let schema = text.replace("Timestamp", "::millrace_protocol::form::Time");
    let (with, form, value) = match &attributes.form {
        Some(form) => {
            let value = attributes.value.clone();
            (None, form.clone(), value.unwrap_or_else(|| quote!(::core::convert::From::from(#name))))
        }
        None if attributes.is_optional => {
            let is_empty = serde_text(&field.attrs, "skip_serializing_if")?;
            let is_empty =
                is_empty.ok_or_else(|| Error::new(name.span(), "the log always has this field"))?;
            let is_empty: syn::Path = syn::parse_str(&is_empty)?;
            let with = quote!(#[schemars(with = #schema)] #[serde(skip_serializing_if = "Option::is_none")]);
            (Some(with), quote!(Option<&'a #field_type>), quote!((!#is_empty(#name)).then_some(#name)))
        }
        None => {
            let with = (schema != text).then(|| quote!(#[schemars(with = #schema)]));
            (with, quote!(&'a #field_type), quote!(#name))
        }
    };
    Ok((quote!(#docs #rename #with #public #name: #form), value))
}

/// A field that only the form has.
struct ExtraField {
    docs: Vec<Attribute>,
    name: Ident,
    form: Type,
    value: TokenStream,
}

/// The attributes `api` of a variant or a field.
#[derive(Default)]
struct ApiAttributes {
    name: Option<LitStr>,
    is_skipped: bool,
    is_optional: bool,
    is_flat: bool,
    form: Option<TokenStream>,
    value: Option<TokenStream>,
    before: Option<ExtraField>,
}

impl ApiAttributes {
    fn read(attributes: &[Attribute]) -> Result<Self> {
        let mut all = Self::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("api")) {
            attribute.parse_nested_meta(|meta| {
                let key = meta.path.require_ident()?.to_string();
                match key.as_str() {
                    "name" => all.name = Some(meta.value()?.parse()?),
                    "skip" => all.is_skipped = true,
                    "optional" => all.is_optional = true,
                    "flatten" => all.is_flat = true,
                    "form" | "value" | "before" => {
                        let content;
                        parenthesized!(content in meta.input);
                        match key.as_str() {
                            "form" => all.form = Some(content.parse()?),
                            "value" => all.value = Some(content.parse()?),
                            _ => {
                                let (docs, name) = (content.call(Attribute::parse_outer)?, content.parse()?);
                                content.parse::<Token![:]>()?;
                                let form = content.parse()?;
                                content.parse::<Token![=]>()?;
                                all.before = Some(ExtraField { docs, name, form, value: content.parse()? });
                            }
                        }
                    }
                    _ => return Err(meta.error("no such attribute of a form")),
                }
                Ok(())
            })?;
        }
        Ok(all)
    }
}

fn docs_of(attributes: &[Attribute]) -> Vec<Attribute> {
    attributes.iter().filter(|attribute| attribute.path().is_ident("doc")).cloned().collect()
}

fn docs_or_common(docs: &[Attribute], name: &Ident) -> Result<TokenStream> {
    if !docs.is_empty() {
        return Ok(quote!(#(#docs)*));
    }
    let docs = COMMON_DOCS.iter().find(|(common, _)| name == common);
    let (_, docs) =
        docs.ok_or_else(|| Error::new(name.span(), "the API needs a description of this field"))?;
    Ok(quote!(#[doc = #docs]))
}

/// Returns the text of an attribute of serde, if it is there.
fn serde_text(attributes: &[Attribute], key: &str) -> Result<Option<String>> {
    let mut text = None;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        attribute.parse_nested_meta(|meta| {
            if meta.input.peek(Token![=]) {
                let value: LitStr = meta.value()?.parse()?;
                text = if meta.path.is_ident(key) { Some(value.value()) } else { text.take() };
            }
            Ok(())
        })?;
    }
    Ok(text)
}

fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.extend(letter.to_lowercase());
    }
    text
}
