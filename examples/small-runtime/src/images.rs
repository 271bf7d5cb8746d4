//! Images service: every pulled image exists, and is empty.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tonic::{Request, Response, Status};

use crate::proto::image_service_server::ImageService;
use crate::proto::{
    Image, ImageFsInfoRequest, ImageFsInfoResponse, ImageStatusRequest, ImageStatusResponse,
    ListImagesRequest, ListImagesResponse, PullImageRequest, PullImageResponse,
};

#[derive(Debug, Default)]
pub(crate) struct Images(Mutex<BTreeSet<String>>);

fn image(name: &str) -> Image {
    Image { id: name.to_owned(), repo_tags: vec![name.to_owned()], size: 1, ..Image::default() }
}

#[tonic::async_trait]
impl ImageService for Images {
    async fn list_images(
        &self,
        _: Request<ListImagesRequest>,
    ) -> Result<Response<ListImagesResponse>, Status> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Response::new(ListImagesResponse {
            images: names.iter().map(|one| image(one)).collect(),
        }))
    }

    async fn image_status(
        &self,
        request: Request<ImageStatusRequest>,
    ) -> Result<Response<ImageStatusResponse>, Status> {
        let name = request.into_inner().image.unwrap_or_default().image;
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let image = names.contains(&name).then(|| image(&name));
        Ok(Response::new(ImageStatusResponse { image, ..ImageStatusResponse::default() }))
    }

    async fn pull_image(
        &self,
        request: Request<PullImageRequest>,
    ) -> Result<Response<PullImageResponse>, Status> {
        let name = request.into_inner().image.unwrap_or_default().image;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
        Ok(Response::new(PullImageResponse { image_ref: name }))
    }

    async fn image_fs_info(
        &self,
        _: Request<ImageFsInfoRequest>,
    ) -> Result<Response<ImageFsInfoResponse>, Status> {
        Ok(Response::new(ImageFsInfoResponse::default()))
    }
}
